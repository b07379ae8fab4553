"""docs/tutorial/first-login.md does what it says: its commands and cells are run, and what they print is compared.

The demo's hub stands for `sudo make run`, which is the same program; what the reader does with the mouse is done by
the hub's API here, and by a real browser in test_browser.py.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from spawner.settings import ROOT
from tests.hub.person import Person
from tests.rig.demo_hub import DemoHub
from tests.rig.waiting import wait_until_sync

pytestmark = [pytest.mark.docker, pytest.mark.hub, pytest.mark.timeout(420)]

PAGE = ROOT / "docs" / "tutorial" / "first-login.md"
ONE_GPU = {"variant": "cpu", "mode": "exclusive", "gpus": 1}


@dataclass(frozen=True)
class Block:
    """Something to run, what the page says that it prints, and the words before it."""

    kind: str
    text: str
    printed: str
    before: str


def blocks() -> Iterator[Block]:
    """What there is to run, in the order of the page."""
    parts = re.split(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    texts, kinds, bodies = parts[0::3], parts[1::3], parts[2::3]
    for number, (before, kind, body) in enumerate(zip(texts, kinds, bodies, strict=False)):
        if kind != "text":
            follows = number + 1 < len(kinds) and kinds[number + 1] == "text"
            yield Block(kind=kind, text=body, printed=bodies[number + 1] if follows else "", before=before)


def matches(printed: str, page: str) -> bool:
    """Whether a program printed what the page shows; `...` stands for anything, and widths do not count."""
    pattern = ".*?".join(re.escape(" ".join(part.split())) for part in page.split("..."))
    return re.search(pattern, " ".join(printed.split())) is not None


@pytest.mark.parametrize(
    ("printed", "page", "same"),
    [
        pytest.param("leases\n│ 1f │ ann  │ cpu │", "leases\n... ann ... cpu ...\n", True, id="anything-between"),
        pytest.param("leases\n│ 1f │ bob  │ cpu │", "leases\n... ann ... cpu ...\n", False, id="another-word"),
        pytest.param("['/dev/nvidia2']\n", "['/dev/nvidia2']\n", True, id="brackets"),
        pytest.param("['/dev/nvidia1']\n", "['/dev/nvidia2']\n", False, id="another-node"),
    ],
)
def test_what_a_page_shows_is_compared_with_what_is_printed(printed, page, same):
    assert matches(printed, page) is same


def run(block: Block, hub: DemoHub, student: Person) -> str:
    """Do what a block says; what it printed."""
    if block.kind == "python":
        return student.run("python3", "-c", block.text)
    printed = ""
    for line in block.text.splitlines():
        words = line.split()
        if words[:3] == ["sudo", "make", "run"]:
            printed += (hub.state / "log" / "make-run.log").read_text(encoding="utf-8")
        elif words[:2] == ["sudo", "make"]:  # they would end the hub of all tests; that they are there must do
            assert re.search(rf"^{words[2]}:.* ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        else:
            assert words[:2] == ["sudo", ".venv/bin/gpucampus"], line
            printed += hub.command("-m", "spawner.cli", *words[2:])
    return printed


def test_a_reader_of_first_login_sees_what_it_says(
    people: dict[str, Person], stopped: Callable[[], None], demo_hub: DemoHub
) -> None:
    student = people["student"]
    seen = list(blocks())
    assert [block.kind for block in seen] == ["sh", "python", "sh", "python", "sh", "python", "sh"]
    for block in seen:
        if "press **Start**" in block.before or "Start again" in block.before:
            student.start(ONE_GPU)
        if "*Stop My Server*" in block.before:
            student.stop()
        told = [""]

        def as_told(block: Block = block, told: list[str] = told) -> bool:
            told[0] = run(block, demo_hub, student)
            return matches(told[0], block.printed)

        try:
            wait_until_sync(as_told, 20)  # the history is written by a thread of its own
        except AssertionError as error:
            raise AssertionError(f"{block.text}printed\n{told[0]}\nand the page says\n{block.printed}") from error
