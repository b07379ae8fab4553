"""The command `gpucampus`: what the operator asks on a terminal.

Reads the settings, the engine and the GPUs itself, so that it answers while the hub is down. Exit codes: 0 all is
well, 1 there is a finding (said in one line on stderr), 2 the command was typed wrongly. With --json the answer is one
JSON object on stdout, whatever the exit code.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from spawner import docker_api, nvml
from spawner import settings as settings_file
from spawner.core import catalog as catalogs
from spawner.core import ledger
from spawner.core.model import GPU, Lease, Node
from spawner.core.names import printable
from spawner.messages import size
from spawner.settings import Settings, SettingsError

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
settings_app = typer.Typer(no_args_is_help=True, help="The settings file.")
app.add_typer(settings_app, name="settings")

AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]

_PIPE_WIDTH = 200  # without a terminal rich assumes 80 columns and would cut UUIDs


@app.callback()
def _root() -> None:
    """Look at a gpucampus machine: who holds which GPU, and whether all is well."""


@settings_app.command("check")
def settings_check(
    path: Annotated[Path | None, typer.Argument(help="The file; else the one that the hub would read.")] = None,
    *,
    as_json: AsJSON = False,
) -> None:
    """Check the settings file and the catalog that it names."""
    path = path or settings_file.locate()
    findings = []
    try:
        settings = settings_file.load(path)
        catalog = _catalog(settings)
        findings = [
            f"{settings.catalog}: variants.{variant.name}.roles names {role}, which is no role of the settings"
            for variant in catalog.variants
            for role in variant.roles
            if role not in settings.roles
        ]
    except (SettingsError, catalogs.CatalogError) as error:
        findings = [str(error)]
    if as_json:
        _print_json({"path": str(path), "findings": findings})
    elif not findings:
        _console().print(f"{path}: the settings are usable")
    _end(findings)


@app.command()
def gpus(*, as_json: AsJSON = False) -> None:
    """List the GPUs of this machine, and who holds them."""
    settings = _load(as_json=as_json)
    node, findings = _inventory(settings)
    book, engine_findings = _ledger()
    holders = {uuid: f"{lease.user}/{lease.server}" for lease in book.leases for uuid in lease.gpus}
    here = {uuid for gpu in node.gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig))}
    if not findings:
        findings = [
            f"{uuid} is held by {holders[uuid]} and not in the inventory" for uuid in holders if uuid not in here
        ]
    findings += [f"GPU {gpu.index} ({gpu.uuid}) is unhealthy: {gpu.unhealthy}" for gpu in node.gpus if gpu.unhealthy]
    findings += engine_findings
    if as_json:
        _print_json(
            {
                "simulated": settings.gpus.simulated,
                "node": asdict(node),
                "holders": holders,
                "findings": findings,
            }
        )
    else:
        known = None if engine_findings else {**dict.fromkeys(book.withheld, "withheld"), **holders}
        rows = [row for gpu in node.gpus for row in _gpu_rows(gpu, known)]
        _print_table(settings, f"GPUs, driver {node.driver or 'none'}", ("#", "GPU", "memory", "UUID", "state"), rows)
    _end(findings)


@app.command()
def leases(*, as_json: AsJSON = False) -> None:
    """List what running servers hold, as the container engine has it."""
    settings = _load(as_json=as_json)
    book, findings = _ledger()
    findings += _ledger_findings(book)
    if as_json:
        _print_json({"simulated": settings.gpus.simulated, **asdict(book), "findings": findings})
    else:
        columns = ("lease", "hub", "user", "server", "variant", "mode", "GPUs", "memory", "ends")
        _print_table(settings, "leases", columns, [_lease_row(lease) for lease in book.leases])
    _end(findings)


@app.command()
def status(*, as_json: AsJSON = False) -> None:
    """Say in a few lines whether hub, engine and GPUs are well."""
    settings = _load(as_json=as_json)
    hub = f"http://{settings.network.gateway}:{settings.hub.hub_port}/hub/health"
    hub_answers = _answers(hub)
    findings = [] if hub_answers else [f"the hub does not answer on {hub}; `make run` starts it"]
    node, gpu_findings = _inventory(settings)
    book, engine_findings = _ledger()
    findings += gpu_findings + engine_findings + _ledger_findings(book)
    held = {uuid for lease in book.leases for uuid in lease.gpus}
    counts = {
        "gpus": len(node.gpus),
        "gpus_held": sum(1 for gpu in node.gpus if gpu.uuid in held),
        "gpus_unhealthy": sum(1 for gpu in node.gpus if gpu.unhealthy),
        "leases": len(book.leases),
    }
    if as_json:
        facts = {"simulated": settings.gpus.simulated, "hub": hub_answers, "engine": not engine_findings}
        _print_json({**facts, **counts, "findings": findings})
    else:
        rows = [
            ("hub", f"answers on {hub}" if hub_answers else "does not answer"),
            ("container engine", "does not answer" if engine_findings else "answers"),
            ("GPUs", "{gpus}: {gpus_held} held, {gpus_unhealthy} unhealthy".format(**counts)),
            ("leases", str(counts["leases"])),
        ]
        _print_table(settings, f"{settings.hub.name} at {settings.hub.public_url}", ("part", "state"), rows)
    _end(findings)


@app.command()
def catalog(*, as_json: AsJSON = False) -> None:
    """List the image variants."""
    settings = _load(as_json=as_json)
    try:
        found = _catalog(settings)
    except catalogs.CatalogError as error:
        _fail(str(error), as_json=as_json)
    if as_json:
        variants = [asdict(variant) for variant in found.variants]
        _print_json(
            {"simulated": settings.gpus.simulated, "base": asdict(found.base), "variants": variants, "findings": []}
        )
        return
    rows = [
        (
            variant.name + (" (default)" if variant.default else ""),
            variant.title,
            variant.image,
            f"driver {variant.min_driver} or newer" if variant.min_driver else "no GPU needed",
            ", ".join(variant.roles) or "everybody",
        )
        for variant in found.variants
    ]
    _print_table(settings, "image variants", ("variant", "title", "image", "runs on", "for"), rows)


def main() -> None:
    """Run the command line."""
    app(prog_name="gpucampus")


def _load(*, as_json: bool) -> Settings:
    try:
        return settings_file.load()
    except SettingsError as error:
        _fail(str(error), as_json=as_json)


def _catalog(settings: Settings) -> catalogs.Catalog:
    try:
        return catalogs.parse(settings.catalog.read_text(encoding="utf-8"))
    except OSError as error:
        raise catalogs.CatalogError(f"{settings.catalog}: cannot be read ({error.strerror})") from error


def _inventory(settings: Settings) -> tuple[Node, list[str]]:
    """The GPUs, or a node without and why that is a finding. No GPU is none where the settings say so."""
    answer = asyncio.run(nvml.ask(settings.gpus, "this machine"))
    if isinstance(answer, nvml.InventoryFailure):
        node = Node(name="this machine", simulated=settings.gpus.simulated)
        return node, [f"the GPUs are unknown: {answer.reason}"]
    expected = settings.gpus.inventory != "none"
    return answer.node, [f"no GPUs: {answer.reason}"] if answer.reason and expected else []


def _ledger() -> tuple[ledger.Ledger, list[str]]:
    try:
        return ledger.rebuild(docker_api.list_containers_once()), []
    except (docker_api.EngineUnknown, docker_api.EngineRefuses) as error:
        return ledger.Ledger(), [f"the container engine does not answer, so leases are unknown ({error})"]


def _ledger_findings(book: ledger.Ledger) -> list[str]:
    conflicts = [f"GPU {item.gpu} is held by more than one lease: {', '.join(item.leases)}" for item in book.conflicts]
    return conflicts + [f"container {item.name} cannot be read as a lease: {item.why}" for item in book.orphans]


def _gpu_rows(gpu: GPU, holders: dict[str, str] | None) -> list[Sequence[str]]:
    """One row for the GPU and one for each MIG instance on it; holders are None where nobody knows them."""

    def state(uuid: str, idle: str = "free") -> str:
        holder = "unknown" if holders is None else holders.get(uuid)
        return ", ".join(filter(None, (holder, gpu.unhealthy and f"unhealthy: {gpu.unhealthy}"))) or idle

    own = state(gpu.uuid, idle="split by MIG" if gpu.mig_enabled else "free")
    rows = [(str(gpu.index), gpu.name, f"{size(gpu.memory_bytes)} GiB", gpu.uuid, own)]
    rows += [
        ("", f"  MIG {mig.profile}", f"{size(mig.memory_bytes)} GiB", mig.uuid, state(mig.uuid)) for mig in gpu.mig
    ]
    return list(rows)


def _lease_row(lease: Lease) -> Sequence[str]:
    left = int((lease.expires - datetime.now(UTC)).total_seconds()) // 60
    return (
        lease.id,
        lease.hub,
        lease.user,
        lease.server or "(default)",
        lease.variant,
        lease.mode.value,
        "\n".join(lease.gpus) or "-",
        f"{size(lease.memory_bytes)} GiB",
        f"in {left // 60} h {left % 60:02} min" if left >= 0 else "over",
    )


def _answers(url: str) -> bool:
    """Whether a page answers 200. No proxy of the environment: the hub is on this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=3) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _console() -> Console:
    # no markup: labels of containers are not ours to trust, and rich would read [brackets] in them
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=_PIPE_WIDTH)


def _print_table(settings: Settings, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=f"{title} (simulated GPUs)" if settings.gpus.simulated else title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("\n".join(printable(line, 200) for line in cell.split("\n")) for cell in row))
    _console().print(table)


def _print_json(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2, default=str))


def _fail(finding: str, *, as_json: bool) -> NoReturn:
    if as_json:
        _print_json({"findings": [finding]})
    _end([finding])


def _end(findings: Sequence[str]) -> NoReturn:
    """Say the findings on stderr and leave: 1 with findings, 0 without."""
    for finding in findings:
        typer.echo(f"gpucampus: {finding}", err=True)
    raise typer.Exit(1 if findings else 0)


if __name__ == "__main__":
    main()
