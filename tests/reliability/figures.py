"""The figures that a run of the campaigns measured, as the table of docs/explanation/reliability.md."""

from pathlib import Path

__all__ = ["PAGE", "add", "clear", "write"]

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/reliability.md"
BEGIN, END = "<!-- figures: python -m tests.reliability -->", "<!-- end of figures -->"
_rows: list[tuple[str, str, str]] = []


def add(what: str, how_often: str, result: str) -> None:
    """Note a row, and say it: a run takes long, and one that fails half-way writes no page."""
    _rows.append((what, how_often, result))
    print(f"| {what} | {how_often} | {result} |", flush=True)


def clear() -> None:
    """Begin anew."""
    _rows.clear()


def write(head: str) -> None:
    """Put the table between the marks of the page."""
    table = ["| What was done | How often | What came of it |", "| --- | --- | --- |"]
    table += [f"| {' | '.join(row)} |" for row in _rows]
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{head}\n\n" + "\n".join(table) + f"\n{END}{after}", encoding="utf-8")
