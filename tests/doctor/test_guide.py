"""The guide lists every check with its meaning and remedy, in the order of the table that people see."""

import re
from pathlib import Path

from spawner.doctor import CHECKS

GUIDE = Path(__file__).resolve().parents[2] / "docs/howto/doctor.md"


def test_the_guide_lists_every_check_in_the_order_of_the_table():
    # three cells with something in each; a bar inside a cell is escaped
    listed = re.findall(
        r"^\| `([^`]+)` \| [^|\s](?:[^|]|\\\|)* \| [^|\s](?:[^|]|\\\|)* \|$",
        GUIDE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert listed == [check.name for check in CHECKS]
