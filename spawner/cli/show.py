"""How the command line speaks: the application, tables, JSON, findings and exit codes."""

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from spawner.cli.lazy import LazyGroup
from spawner.core.names import printable

if TYPE_CHECKING:
    from rich.console import Console

    from spawner.settings import Settings

__all__ = [
    "AsJSON",
    "Yes",
    "app",
    "asked_at_terminal",
    "confirm",
    "console",
    "end",
    "fail",
    "mistyped",
    "moment",
    "print_json",
    "print_table",
    "quoted",
]

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before servers are stopped.")]

_PIPE_WIDTH = 200  # without a terminal rich assumes 80 columns and would cut UUIDs


@app.callback()
def _root() -> None:
    """Look after a gpucampus machine: who holds which GPU, what may be given out, and whether all is well."""


def console() -> "Console":
    """Give a console of the terminal's width, or of one that cuts nothing."""
    from rich.console import Console

    # no markup: labels of containers are not ours to trust, and rich would read [brackets] in them
    found = Console(markup=False, highlight=False)
    return found if found.is_terminal else Console(markup=False, highlight=False, width=_PIPE_WIDTH)


def print_table(settings: "Settings | None", title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows whose cells may come from anybody."""
    from rich.table import Table

    simulated = settings is not None and settings.gpus.simulated
    table = Table(title=f"{title} (simulated GPUs)" if simulated else title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("\n".join(printable(line, 200) for line in cell.split("\n")) for cell in row))
    console().print(table)


def print_json(answer: dict[str, Any]) -> None:
    """Print the one object of an answer."""
    typer.echo(json.dumps(answer, indent=2, default=_plain))


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask before servers are stopped; 1 where the answer is no, 2 where nobody can be asked."""
    if yes:
        return
    if as_json or not asked_at_terminal():
        mistyped(f"{question} Say --yes, since there is nobody to ask", as_json=as_json)
    if not typer.confirm(question):
        fail("nothing was done", as_json=as_json)


def asked_at_terminal() -> bool:
    """Whether somebody sits there who can answer."""
    return sys.stdin.isatty()


def fail(finding: str, *, as_json: bool) -> NoReturn:
    """Leave with one finding."""
    if as_json:
        print_json({"findings": [finding]})
    end([finding])


def mistyped(why: str, *, as_json: bool) -> NoReturn:
    """Leave because the command cannot be what was meant."""
    if as_json:
        print_json({"findings": [why]})
    typer.echo(f"gpucampus: {printable(why, 1000)}", err=True)
    raise typer.Exit(2)


def end(findings: Sequence[str]) -> NoReturn:
    """Say the findings on stderr and leave: 1 with findings, 0 without."""
    for finding in findings:
        typer.echo(f"gpucampus: {printable(finding, 1000)}", err=True)
    raise typer.Exit(1 if findings else 0)


def moment(when: datetime | None) -> str:
    """Say a time in UTC to the second, as logs and --at have it."""
    return "-" if when is None else when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quoted(word: str) -> str:
    """Write a word so that it can be typed into a shell."""
    return shlex.quote(printable(word, 200))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
