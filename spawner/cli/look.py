"""The commands that look and change nothing: status, gpus, leases, orphans, catalog, settings check."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from spawner import settings as settings_file
from spawner.cli.machine import Engine, Hub, ask_engine, ask_hub, cordons, inventory, ledger_findings, load
from spawner.cli.show import AsJSON, app, console, end, fail, print_json, print_table, quoted
from spawner.core import catalog as catalogs
from spawner.core import regrant
from spawner.core.ledger import LABEL, Container
from spawner.core.model import GPU, Lease, MIGInstance
from spawner.messages import size
from spawner.settings import Settings, SettingsError

__all__ = ["catalog", "gpus", "leases", "orphans", "settings_check", "status"]

ADOPTION = (
    "An orphan can be removed, not adopted: its server trusts a token that only the hub that started it has on record, "
    "so nobody could sign in to it again. Files in the home stay."
)

settings_app = typer.Typer(no_args_is_help=True, help="The settings file.")


@app.command()
def status(*, as_json: AsJSON = False) -> None:
    """Say in a few lines whether hub, engine and GPUs are well."""
    settings = load(as_json=as_json)
    hub = ask_hub(settings)
    findings = [] if hub.up else [f"{hub.trouble}; `make run` starts it"]
    node, gpu_findings, _ = inventory(settings)
    engine = ask_engine()
    findings += gpu_findings + list(filter(None, [engine.trouble])) + ledger_findings(engine.book)
    held = {uuid for lease in engine.book.leases for uuid in lease.gpus}
    counts = {
        "gpus": len(node.gpus),
        "gpus_held": sum(1 for gpu in node.gpus if gpu.uuid in held),
        "gpus_unhealthy": sum(1 for gpu in node.gpus if gpu.unhealthy),
        "leases": len(engine.book.leases),
    }
    if as_json:
        facts = {"simulated": settings.gpus.simulated, "hub": hub.up, "engine": not engine.trouble}
        print_json({**facts, **counts, "findings": findings})
    else:
        rows = [
            ("hub", f"answers on {hub.api.url}/health" if hub.up else "does not answer"),
            ("container engine", "does not answer" if engine.trouble else "answers"),
            ("GPUs", "{gpus}: {gpus_held} held, {gpus_unhealthy} unhealthy".format(**counts)),
            ("leases", str(counts["leases"])),
        ]
        print_table(settings, f"{settings.hub.name} at {settings.hub.public_url}", ("part", "state"), rows)
    end(findings)


@app.command()
def gpus(*, as_json: AsJSON = False) -> None:
    """List the GPUs of this machine: their state, and who holds them."""
    settings = load(as_json=as_json)
    node, findings, readings = inventory(settings)
    engine = ask_engine()
    if not engine.trouble:  # else every process would look like a stranger's
        owners = regrant.holders(engine.containers)
        node = regrant.out_of_service(node, regrant.withheld(node, readings, owners, settings.gpus.idle_memory))
    cordoned, cordon_findings = cordons(settings)
    closed = {cordon.target: cordon for cordon in cordoned}
    holders: dict[str, list[Lease]] = {}
    for lease in engine.book.leases:
        for uuid in lease.gpus:
            holders.setdefault(uuid, []).append(lease)
    here = {uuid for gpu in node.gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig))}
    if not findings:
        findings = [
            f"{uuid} is held by {_holder(holders[uuid])} and not in the inventory"
            for uuid in holders
            if uuid not in here
        ]
    findings += [f"GPU {gpu.index} ({gpu.uuid}) is unhealthy: {gpu.unhealthy}" for gpu in node.gpus if gpu.unhealthy]
    findings += [*filter(None, [engine.trouble]), *cordon_findings]
    if as_json:
        print_json(
            {
                "simulated": settings.gpus.simulated,
                "node": asdict(node),
                "holders": {
                    uuid: [
                        {"lease": lease.id, "hub": lease.hub, "user": lease.user, "server": lease.server}
                        for lease in by
                    ]
                    for uuid, by in holders.items()
                },
                "cordons": [asdict(cordon) for cordon in cordoned],
                "findings": findings,
            }
        )
    else:
        columns = ("#", "UUID", "model", "memory", "used", "use", "temp.", "state", "holder")
        known = None if engine.trouble else holders

        def shut(*uuids: str) -> str:
            return next((closed[target].state for target in (*uuids, node.name) if target in closed), "")

        rows = [row for gpu in node.gpus for row in _gpu_rows(gpu, readings, known, engine.book.withheld, shut)]
        print_table(settings, f"GPUs of {node.name}, driver {node.driver or 'none'}", columns, rows)
    end(findings)


@app.command()
def leases(*, as_json: AsJSON = False) -> None:
    """List what running servers hold, as the container engine has it."""
    settings = load(as_json=as_json)
    engine = ask_engine()
    findings = [*filter(None, [engine.trouble]), *ledger_findings(engine.book)]
    if as_json:
        print_json({"simulated": settings.gpus.simulated, **asdict(engine.book), "findings": findings})
    else:
        columns = ("lease", "hub", "user", "server", "variant", "mode", "GPUs", "memory", "ends")
        print_table(settings, "leases", columns, [_lease_row(lease) for lease in engine.book.leases])
    end(findings)


@app.command()
def orphans(*, as_json: AsJSON = False) -> None:
    """List the leases that this hub does not answer for, each with the reason and the command that removes it."""
    settings = load(as_json=as_json)
    hub = ask_hub(settings)
    engine = ask_engine()
    found = _orphans(settings, engine, hub)
    if any(row["unknown_to_hub"] for row in found):
        # a server that was just stopping is in the first list and in no other
        engine = ask_engine()
        found = _orphans(settings, engine, hub)
    findings = list(filter(None, [engine.trouble]))
    if hub.trouble:
        findings.append(f"{hub.trouble}, so which leases it knows is unknown: listed is what the labels tell")
    findings += [f"container {row['container']}: {row['reason']}" for row in found if not row["other_hub"]]
    if as_json:
        print_json({"simulated": settings.gpus.simulated, "orphans": found, "adoption": ADOPTION, "findings": findings})
    else:
        columns = ("container", "lease", "user", "server", "GPUs", "reason", "to remove it")
        rows = [
            (
                row["container"],
                row["lease"] or "-",
                row["user"] or "-",
                row["server"] or "-",
                "\n".join(row["gpus"]) or "-",
                row["reason"],
                row["remove"],
            )
            for row in found
        ]
        print_table(settings, "orphans", columns, rows)
        if found:
            console().print(ADOPTION)
    end(findings)


@app.command()
def catalog(*, as_json: AsJSON = False) -> None:
    """List the image variants."""
    settings = load(as_json=as_json)
    try:
        found = _catalog(settings)
    except catalogs.CatalogError as error:
        fail(str(error), as_json=as_json)
    if as_json:
        variants = [asdict(variant) for variant in found.variants]
        print_json(
            {"simulated": settings.gpus.simulated, "base": asdict(found.base), "variants": variants, "findings": []}
        )
        return
    rows = [
        (
            variant.name + (" (default)" if variant.default else ""),
            variant.title,
            variant.image,
            f"driver {variant.min_driver} or newer" if variant.min_driver else "no GPU needed",
            variant.use or "-",
            ", ".join(variant.roles) or "everybody",
        )
        for variant in found.variants
    ]
    print_table(settings, "image variants", ("variant", "title", "image", "runs on", "use", "for"), rows)


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
        findings = [
            f"{settings.catalog}: variants.{variant.name}.roles names {role}, which is no role of the settings"
            for variant in _catalog(settings).variants
            for role in variant.roles
            if role not in settings.roles
        ]
    except (SettingsError, catalogs.CatalogError) as error:
        findings = [str(error)]
    if as_json:
        print_json({"path": str(path), "findings": findings})
    elif not findings:
        console().print(f"{path}: the settings are usable")
    end(findings)


def _catalog(settings: Settings) -> catalogs.Catalog:
    try:
        return catalogs.parse(settings.catalog.read_text(encoding="utf-8"))
    except OSError as error:
        raise catalogs.CatalogError(f"{settings.catalog}: cannot be read ({error.strerror})") from error


def _orphans(settings: Settings, engine: Engine, hub: Hub) -> list[dict[str, Any]]:
    unreadable = {orphan.container: orphan for orphan in engine.book.orphans}
    found = []
    for container in sorted(engine.containers, key=lambda c: c.name):
        lease = engine.lease_of(container)
        if lease is None:
            found.append(_orphan(container, f"its labels cannot be read: {unreadable[container.id].why}"))
        elif lease.hub != settings.hub.name:
            found.append(_orphan(container, f"it belongs to the hub {lease.hub}; ask there first", other_hub=True))
        elif lease.kind == "server" and hub.up and not hub.trouble and not hub.knows(lease):
            found.append(_orphan(container, "the hub does not know this server", unknown_to_hub=True))
    return found


def _orphan(
    container: Container, reason: str, *, other_hub: bool = False, unknown_to_hub: bool = False
) -> dict[str, Any]:
    def label(key: str) -> str:
        return container.labels.get(LABEL + key, "")

    return {
        "container": container.name,
        "lease": label("lease"),
        "hub": label("hub"),
        "user": label("user"),
        "server": label("server"),
        "gpus": [uuid for uuid in label("gpus").split(",") if uuid],
        "reason": reason,
        # by the container's name: it is the engine's word, and what the labels say may be anybody's
        "remove": f"gpucampus release {quoted(container.name)}",
        "other_hub": other_hub,
        "unknown_to_hub": unknown_to_hub,
    }


def _holder(by: Sequence[Lease]) -> str:
    return ", ".join(f"{lease.user}/{lease.server}" for lease in by)


def _gpu_rows(
    gpu: GPU,
    readings: Mapping[str, object],
    holders: Mapping[str, Sequence[Lease]] | None,
    withheld: frozenset[str],
    closed: Callable[..., str],
) -> list[Sequence[str]]:
    """One row for the GPU and one for each MIG instance on it; holders are None where nobody knows them."""

    def row(number: str, item: GPU | MIGInstance, name: str, idle: str = "free") -> Sequence[str]:
        held = "held" if holders and item.uuid in holders else "withheld" if item.uuid in withheld else ""
        states = ("unknown" if holders is None else held, closed(item.uuid, gpu.uuid))
        state = ", ".join(filter(None, (*states, gpu.unhealthy and f"unhealthy: {gpu.unhealthy}"))) or idle
        holder = "unknown" if holders is None else _holder(holders.get(item.uuid, ())) or "-"
        measured = _reading(readings.get(item.uuid))
        return number, item.uuid, name, f"{size(item.memory_bytes)} GiB", *measured, state, holder

    own = row(str(gpu.index), gpu, gpu.name, idle="split by MIG" if gpu.mig_enabled else "free")
    return [own, *(row("", mig, f"  MIG {mig.profile}") for mig in gpu.mig)]


def _reading(reading: object | None) -> tuple[str, str, str]:
    """Memory in use, use and temperature, as far as the inventory has read them."""
    used, busy, heat = (getattr(reading, key, None) for key in ("memory_used_bytes", "use_percent", "temperature_c"))
    return (
        "-" if used is None else f"{size(used)} GiB",
        "-" if busy is None else f"{busy} %",
        "-" if heat is None else f"{heat} °C",
    )


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


app.add_typer(settings_app, name="settings")
