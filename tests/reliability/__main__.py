"""Run the campaigns and write their figures into docs/explanation/reliability.md: `python -m tests.reliability`.

GPUCAMPUS_ROUNDS is 200 by itself. With options of pytest, such as `-k killed`, only those campaigns run, and only their
rows are written anew.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.reliability import figures

CAMPAIGNS = Path(__file__).with_name("campaigns.py")


def main() -> int:
    """Run them; a full run begins with an empty table."""
    os.environ.setdefault("GPUCAMPUS_ROUNDS", "200")
    if len(sys.argv) == 1:
        figures.clear()
    return int(pytest.main(["-m", "reliability", str(CAMPAIGNS), "-s", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
