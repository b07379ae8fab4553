"""The commands that change something: release, drain, cordon, undrain."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from spawner.cli.ending import Ended, Ending, said
from spawner.cli.machine import Engine, ask_engine, ask_hub, audit_log, inventory, load, operator, records
from spawner.cli.show import AsJSON, Yes, app, confirm, console, end, fail, mistyped, moment, print_json, quoted
from spawner.core.ledger import LABEL, Container
from spawner.core.model import Node
from spawner.records import Closed, Cordon
from spawner.settings import Settings

__all__ = ["cordon", "drain", "release", "undrain"]

ROUNDS = 3  # a start may have been granted a GPU just before it was closed
SHORT_ID = 12

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A GPU or MIG instance by its UUID, or the node by name.")
]
Reason = Annotated[str, typer.Option(help="Why, for whoever looks next.")]


@app.command()
def release(
    what: Annotated[str, typer.Argument(metavar="LEASE|USER/SERVER|CONTAINER", help="USER/ is the default server.")],
    *,
    yes: Yes = False,
    as_json: AsJSON = False,
) -> None:
    """End a server: stop it as by hand and free what it holds."""
    settings = load(as_json=as_json)
    engine = _engine(as_json=as_json)
    container = _find(settings, engine, what, as_json=as_json)
    lease = engine.lease_of(container)
    owner = "" if lease is None or lease.hub == settings.hub.name else f" of the hub {lease.hub}"
    confirm(f"End {said(container, lease)}{owner}?", yes=yes, as_json=as_json)
    ended = _ending(settings).all(engine, [container])
    if as_json:
        print_json({"released": [asdict(one) for one in ended], "findings": _findings(ended)})
    else:
        _say(ended)
    end(_findings(ended))


@app.command()
def drain(target: Target, *, reason: Reason = "", yes: Yes = False, as_json: AsJSON = False) -> None:
    """Close a GPU or the node: no new leases, and its servers are stopped now as by hand."""
    settings = load(as_json=as_json)
    node = _check_target(settings, target, as_json=as_json)
    engine = _engine(as_json=as_json)
    uuids = _uuids(node, target)
    if holding := _holding(settings, engine, uuids):
        names = ", ".join(said(container, engine.lease_of(container)) for container in holding)
        confirm(f"Stop {names}?", yes=yes, as_json=as_json)
    _close(settings, target, "drained", reason, as_json=as_json)
    ending, ended = _ending(settings), list[Ended]()
    for _ in range(ROUNDS):
        tried = {one.container for one in ended}
        engine = _engine(as_json=as_json)
        left = [container for container in _holding(settings, engine, uuids) if container.name not in tried]
        if not left:
            break
        ended += ending.all(engine, left)
    findings = _findings(ended) + _not_ours(settings, engine, uuids)
    if as_json:
        released = [asdict(one) for one in ended]
        print_json({"target": target, "state": "drained", "released": released, "findings": findings})
    else:
        console().print(f"{target} is drained: it gets no new leases until `gpucampus undrain {quoted(target)}`")
        _say(ended)
    end(findings)


@app.command()
def cordon(target: Target, *, reason: Reason = "", as_json: AsJSON = False) -> None:
    """Close a GPU or the node: no new leases; servers that run go on."""
    settings = load(as_json=as_json)
    _check_target(settings, target, as_json=as_json)
    with records(settings, as_json=as_json) as opened:
        known = _closed(opened.cordons(), target)
    drained = known is not None and known.state == "drained"
    if not drained:
        _close(settings, target, "cordoned", reason, as_json=as_json)
    if as_json:
        print_json({"target": target, "state": "drained" if drained else "cordoned", "findings": []})
    elif drained:
        console().print(f"{target} is drained already, so it gets no new leases; nothing was changed")
    else:
        console().print(f"{target} is cordoned: it gets no new leases until `gpucampus undrain {quoted(target)}`")


@app.command()
def undrain(target: Target, *, as_json: AsJSON = False) -> None:
    """Open a GPU or the node again, whether it was drained or cordoned."""
    settings = load(as_json=as_json)
    with records(settings, as_json=as_json) as opened:
        was = _closed(opened.cordons(), target)
        if was is None or not opened.uncordon(target):
            known = ", ".join(item.target for item in opened.cordons()) or "nothing"
            fail(f"{target} is neither drained nor cordoned; closed is {known}", as_json=as_json)
    _note(settings, "undrain", target, was.reason)
    if as_json:
        print_json({"target": target, "state": "open", "findings": []})
    else:
        shown = f"{was.state} since {moment(was.since)} by {was.by}" + (f": {was.reason}" if was.reason else "")
        console().print(f"{target} may be leased again; it was {shown}")


def _engine(*, as_json: bool) -> Engine:
    """The engine's containers; nothing is ended while it does not answer."""
    engine = ask_engine()
    if engine.trouble:
        fail(engine.trouble, as_json=as_json)
    return engine


def _ending(settings: Settings) -> Ending:
    return Ending(settings=settings, hub=ask_hub(settings), log=audit_log(settings), by=operator())


def _find(settings: Settings, engine: Engine, what: str, *, as_json: bool) -> Container:
    """Find the one container that is meant."""
    user, slash, server = what.partition("/")
    own = {LABEL + "hub": settings.hub.name, LABEL + "user": user, LABEL + "server": server}
    found = [
        container
        for container in engine.containers
        if what in (container.name, container.id, container.labels[LABEL + "lease"])
        or (len(what) >= SHORT_ID and container.id.startswith(what))
        or (slash and own.items() <= container.labels.items())
    ]
    if not found:
        mistyped(f"{what} is no lease, server or container here: `gpucampus leases` lists them", as_json=as_json)
    if len(found) > 1:
        names = ", ".join(sorted(container.name for container in found))
        mistyped(f"{what} is more than one container: name one of {names}", as_json=as_json)
    return found[0]


def _check_target(settings: Settings, target: str, *, as_json: bool) -> Node:
    """Say so where a target is nothing here. A GPU that is held and gone may be closed, too."""
    node, trouble, _ = inventory(settings)
    held = {uuid for lease in ask_engine().book.leases for uuid in lease.gpus}
    known = {node.name, *held, *(uuid for gpu in node.gpus for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig)))}
    looks_right = target.startswith(("GPU-", "MIG-"))
    if target not in known and not (trouble and looks_right):
        mistyped(
            f"{target} is no GPU and no node here: `gpucampus gpus` lists the UUIDs, and the node is {node.name}",
            as_json=as_json,
        )
    return node


def _uuids(node: Node, target: str) -> frozenset[str] | None:
    """The target and the instances on it; None for the node, which is everything."""
    if target == node.name:
        return None
    return frozenset({target, *(mig.uuid for gpu in node.gpus if gpu.uuid == target for mig in gpu.mig)})


def _holding(settings: Settings, engine: Engine, uuids: frozenset[str] | None) -> list[Container]:
    """Containers of this hub with a lease on the target."""
    found = []
    for container in sorted(engine.containers, key=lambda c: c.name):
        lease = engine.lease_of(container)
        if lease and lease.hub == settings.hub.name and (uuids is None or not uuids.isdisjoint(lease.gpus)):
            found.append(container)
    return found


def _not_ours(settings: Settings, engine: Engine, uuids: frozenset[str] | None) -> list[str]:
    """What is left on the target and not this command's to end."""
    return [
        f"container {container.name} is on it and not this hub's to stop; `gpucampus orphans` says more"
        for container in sorted(engine.containers, key=lambda c: c.name)
        if (uuids is None or not uuids.isdisjoint(container.labels.get(LABEL + "gpus", "").split(",")))
        and ((lease := engine.lease_of(container)) is None or lease.hub != settings.hub.name)
    ]


def _close(settings: Settings, target: str, state: Closed, reason: str, *, as_json: bool) -> None:
    with records(settings, as_json=as_json) as opened:
        opened.cordon(target, state, reason, operator(), datetime.now(UTC))
    _note(settings, "drain" if state == "drained" else "cordon", target, reason)


def _note(settings: Settings, event: str, target: str, reason: str) -> None:
    gpus = (target,) if target.startswith(("GPU-", "MIG-")) else ()
    audit_log(settings).write(event, gpus=gpus, by=operator(), target=target, reason=reason)


def _closed(cordons: Sequence[Cordon], target: str) -> Cordon | None:
    return next((item for item in cordons if item.target == target), None)


def _findings(ended: Sequence[Ended]) -> list[str]:
    return [one.finding for one in ended if one.finding]


def _say(ended: Sequence[Ended]) -> None:
    for one in ended:
        if one.gone:
            name = f"{one.user}/{one.server}" if one.user else one.container
            console().print(f"{name} has ended, through the {one.by}; lease {one.lease} is free")
