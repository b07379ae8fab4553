"""What was: the history of leases, for abuse reports and for questions about last week."""

import ipaddress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from spawner.cli.machine import load, records
from spawner.cli.show import AsJSON, app, end, mistyped, moment, print_json, print_table

__all__ = ["history"]


@app.command()
def history(
    *,
    user: Annotated[str | None, typer.Option(help="Of this person only.")] = None,
    address: Annotated[str | None, typer.Option(help="Of containers that had this address only.")] = None,
    at: Annotated[
        str | None, typer.Option(help="That held at this moment, such as 2026-11-30T12:00Z; without a zone it is UTC.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="So many, the newest.")] = 100,
    as_json: AsJSON = False,
) -> None:
    """List past and present leases: who had which GPUs and which address, from when to when, and why it ended."""
    if address is not None:
        try:
            address = str(ipaddress.ip_address(address))
        except ValueError:
            mistyped(f"{address!r} is no address: allowed is one such as 172.30.0.5", as_json=as_json)
    when = None if at is None else _time(at, as_json=as_json)
    settings = load(as_json=as_json)
    with records(settings, as_json=as_json) as opened:
        found = opened.history(user, address, when, limit)
    if as_json:
        print_json({"simulated": settings.gpus.simulated, "history": [asdict(past) for past in found], "findings": []})
        end([])
    columns = ("lease", "user", "server", "GPUs", "address", "granted", "started", "ended", "why")
    rows = [
        (
            past.lease,
            past.user,
            past.server or "(default)",
            "\n".join(past.gpus) or "-",
            past.address or "-",
            moment(past.granted),
            moment(past.started),
            moment(past.ended),
            past.code or "-",
        )
        for past in found
    ]
    title = f"leases, the newest {limit}" if len(found) == limit else "leases"
    print_table(settings, title, columns, rows)


def _time(text: str, *, as_json: bool) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        mistyped(f"--at {text!r} is no time: allowed is one such as 2026-11-30T12:00Z", as_json=as_json)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when
