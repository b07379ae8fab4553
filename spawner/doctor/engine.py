"""The container engine, its network, and the images that servers run from."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from spawner import netcheck
from spawner.core import catalog as catalogs
from spawner.core.engine_kinds import EngineKind, kind_of
from spawner.core.ledger import LABEL, foreign_labels
from spawner.core.model import Variant
from spawner.core.trust import digest_of
from spawner.docker_api import once
from spawner.doctor.machine import EngineFacts, Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding, Status
from spawner.messages import sentence
from spawner.trust import ImageTrust

__all__ = [
    "ask_engine",
    "bridge",
    "check_engine",
    "images",
    "judge_image",
    "judge_network",
    "needed_by",
    "network",
    "read_catalog",
    "trusted",
]

OLDEST = (20, 10)
OLDEST_CDI = (26, 1)
INSTALL = "apt-get install -y docker.io && systemctl enable --now docker"
BUILD = "make images"
_CANNOT_SERVE = {
    EngineKind.PODMAN: ("Podman answers in Docker's place; it lacks what leases are built on", INSTALL),
    EngineKind.ROOTLESS: (
        "Docker runs rootless, so it cannot hand out GPUs or run servers as their users",
        f"dockerd-rootless-setuptool.sh uninstall && unset DOCKER_HOST && {INSTALL}",
    ),
    EngineKind.USERNS: (
        "Docker maps user ids (userns-remap), so homes would belong to nobody in servers",
        'take "userns-remap" out of /etc/docker/daemon.json, then systemctl restart docker',
    ),
    EngineKind.SNAP: (
        "Docker is a snap, which sees neither NVIDIA's toolkit nor homes outside its sandbox",
        f"snap remove --purge docker && {INSTALL}",
    ),
}


def ask_engine() -> EngineFacts:
    """Ask the engine about itself; raises one of docker_api's three kinds. Blocks."""
    with once("doctor") as client:
        return EngineFacts(version=client.version(), info=client.info())


def needed_by(machine: Machine) -> EngineFacts:
    """Give the engine's words to a check that needs them; NotLookedAtError where it does not answer."""
    return machine.engine.get()


def check_engine(machine: Machine) -> Iterator[Finding]:
    """Say whether an engine answers and is one that can serve: Docker, as root, not too old."""
    try:
        facts = machine.engine.get()
    except NotLookedAtError as error:
        remedy = "systemctl restart docker" if machine.path("/usr/bin/dockerd").exists() else INSTALL
        yield fail("engine", f"{error} ({error.why})", remedy)
        return
    yield _kind(facts, injection=machine.settings.gpus.injection if machine.settings else "nvidia")
    for line in facts.info.get("Warnings") or ():
        yield warn(
            "engine warning", str(line).removeprefix("WARNING: "), "docker info shows it; see your system's manual"
        )


def _kind(facts: EngineFacts, *, injection: str) -> Finding:
    version, info = str(facts.version.get("Version", "")), facts.info
    if other := _CANNOT_SERVE.get(kind_of(info, facts.version)):
        return fail("engine", *other)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        return fail("engine", f"Docker {version} is too old; 20.10 is the oldest that works", INSTALL)
    if injection == "cdi" and numbers < OLDEST_CDI:
        text = f'Docker {version} does not know CDI well enough for gpus.injection = "cdi"; 26.1 does'
        return fail("engine", text, 'install Docker 26.1 or newer, or set gpus.injection = "nvidia"')
    return ok("engine", f"Docker {version} answers, data in {info.get('DockerRootDir')}")


# -- the network ----------------------------------------------------------------------------------------------------


def bridge(machine: Machine) -> Iterator[Finding]:
    """Say whether the bridge of the containers is there and as the settings have it."""
    needed_by(machine)
    network = machine.set.network
    with once("networks") as client:
        found = client.networks(names=[f"^{network.name}$"])
    yield judge_network(
        found[0] if found else None, name=network.name, bridge=network.bridge, subnet=str(network.subnet)
    )


def judge_network(found: Mapping[str, Any] | None, *, name: str, bridge: str, subnet: str) -> Finding:
    """Compare the engine's network with the settings."""
    if found is None:
        return warn("bridge", f"the Docker network {name} is not there", "start the hub, which makes it")
    options = found.get("Options") or {}
    subnets = [str(pool.get("Subnet")) for pool in found["IPAM"]["Config"]]
    wrong = []
    if subnets != [subnet]:
        wrong.append(f"has the addresses {', '.join(subnets)} instead of {subnet}")
    if options.get("com.docker.network.bridge.name") != bridge:
        wrong.append(f"is not on the interface {bridge}")
    if options.get("com.docker.network.bridge.enable_icc") != "false":
        wrong.append("lets containers reach each other")
    if wrong:
        remedy = f"stop all servers, then docker network rm {name}, and restart the hub"
        return fail("bridge", f"the Docker network {name} {' and '.join(wrong)}", remedy)
    return ok("bridge", f"{name} is {subnet} on {bridge}, closed between containers")


# -- images ---------------------------------------------------------------------------------------------------------


def network(machine: Machine) -> Iterator[Finding]:
    """Whether containers reach the hub and nothing else, tried from two of them; see spawner/netcheck.py."""
    needed_by(machine)
    yield from netcheck.check(machine.set)


def read_catalog(machine: Machine) -> catalogs.Catalog:
    """Read the catalog that the settings name; NotLookedAtError where it cannot be used."""
    path = machine.set.catalog
    try:
        return catalogs.parse(path.read_text(encoding="utf-8"))
    except (OSError, catalogs.CatalogError) as error:
        raise NotLookedAtError(f"the catalog cannot be used ({error})") from error


def images(machine: Machine) -> Iterator[Finding]:
    """Say of the base and of each variant whether it is built, carries our labels only, and is what the base is now."""
    listed = read_catalog(machine)
    needed_by(machine)
    wanted = {"base": f"{listed.base.image}:{listed.base.suite}"}
    wanted |= {variant.name: variant.image for variant in listed.variants}
    with once("images") as client:
        found = {name: _inspect(client, reference) for name, reference in wanted.items()}
    layers = (found["base"] or {}).get("RootFS", {}).get("Layers") or []
    dispensable = {variant.name for variant in listed.variants if variant.on_demand}
    for name, reference in wanted.items():
        if found[name] is None and name in dispensable:
            continue
        finding = judge_image(name, reference, found[name], [] if name == "base" else layers)
        yield trusted(finding, listed.get(name), found[name], ImageTrust(machine.set.state, machine.set.images))


def trusted(finding: Finding, variant: Variant | None, found: Mapping[str, Any] | None, trust: ImageTrust) -> Finding:
    """Add to what was found of an image that it is not the recorded one, which refuses every start from it."""
    if variant is None or found is None or finding.status is Status.FAIL:
        return finding
    refusal = trust.refusal(variant, str(found["Id"]), tuple(found.get("RepoDigests") or ()))
    if refusal is None:
        return finding
    command = "verify" if digest_of(variant.image) else "build"
    return fail(finding.check, sentence(refusal), f"gpucampus images {command} {variant.name}")


def _inspect(client: Any, reference: str) -> dict[str, Any] | None:  # noqa: ANN401 - docker-py has no types
    for row in client.images(name=reference):
        found: dict[str, Any] = client.inspect_image(row["Id"])
        return found
    return None


def judge_image(name: str, reference: str, found: Mapping[str, Any] | None, base_layers: list[str]) -> Finding:
    """Say of one image whether servers can run from it; a variant must stand on the base as it is now."""
    check = f"image {name}"
    if found is None:
        remedy = f"{BUILD}" if name == "base" else f"python -m deploy.build_images {name}"
        return warn(check, f"{reference} is not built" + ("" if name == "base" else ", so it is not offered"), remedy)
    labels = dict(found.get("Config", {}).get("Labels") or {})
    if forged := foreign_labels(labels, name):
        return fail(check, f"{reference} carries the label {forged[0]}, so no server starts from it", BUILD)
    if labels.get(LABEL + "variant") != name:
        return warn(check, f"{reference} is not of our build (no label {LABEL}variant = {name})", BUILD)
    if base_layers and found.get("RootFS", {}).get("Layers", [])[: len(base_layers)] != base_layers:
        return warn(check, f"{reference} stands on an older base than the one that is here", BUILD)
    return ok(check, f"{reference} is {str(found['Id']).removeprefix('sha256:')[:12]}")
