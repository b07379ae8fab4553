"""The figures that the campaigns measured, as the table of docs/explanation/reliability.md.

A row is written when it is measured, with its day: a run takes long, and what it has measured before it breaks off is
true. A figure that misses its aim is written, too.
"""

from datetime import UTC, datetime
from pathlib import Path

__all__ = ["PAGE", "add", "clear"]

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/reliability.md"
BEGIN, END = "<!-- figures: python -m tests.reliability -->\n", "<!-- end of figures -->"
HEAD = ("| What was done | How often | What came of it | Measured on |", "| --- | --- | --- | --- |")


def add(what: str, how_often: str, result: str) -> None:
    """Write a row, in the place of an older one of the same name."""
    row = f"| {what} | {how_often} | {result} | {datetime.now(UTC):%Y-%m-%d} |"
    print(row, flush=True)
    rows = _rows()
    same = [number for number, old in enumerate(rows) if old.startswith(f"| {what} | ")]
    if same:
        rows[same[0]] = row
    else:
        rows.append(row)
    _write(rows)


def clear() -> None:
    """Begin anew, before a run of all campaigns."""
    _write([])


def _rows() -> list[str]:
    table = PAGE.read_text(encoding="utf-8").split(BEGIN, 1)[1].split(END, 1)[0]
    return [line for line in table.splitlines() if line.startswith("| ") and line not in HEAD]


def _write(rows: list[str]) -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    lines = "".join(f"{line}\n" for line in (*HEAD, *rows))
    PAGE.write_text(f"{before}{BEGIN}{lines}{END}{after}", encoding="utf-8")
