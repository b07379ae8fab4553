"""Run the campaigns and write their figures into docs/explanation/reliability.md; GPUCAMPUS_ROUNDS is 200 by itself."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.reliability import figures

CAMPAIGNS = Path(__file__).with_name("campaigns.py")


def main() -> int:
    """Run them; the page is written only when every one of them has passed."""
    rounds = os.environ.setdefault("GPUCAMPUS_ROUNDS", "200")
    status = pytest.main(["-m", "reliability", str(CAMPAIGNS), "-s", *sys.argv[1:]])
    if status == pytest.ExitCode.OK and len(sys.argv) == 1:
        processors = len(os.sched_getaffinity(0))
        figures.write(
            f"Measured on {datetime.now(UTC):%Y-%m-%d} with GPUCAMPUS_ROUNDS={rounds}, {processors} processors, "
            "4 GPUs (of the tests), 6 users."
        )
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
