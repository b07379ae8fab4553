"""What a container holds, seen from inside: its own GPU and no other, by each of the three injections."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
import pytest

from deploy.demo.gpus.make import COMMON, Device, SimulatedGPUs
from spawner.core.model import GPU, MIGInstance, Node
from spawner.injection import CDIInjection, Injected, Injection, NodesInjection, NvidiaInjection
from tests.conftest import STATE
from tests.rig import probe
from tests.rig.engine import PrivateEngine
from tests.rig.probe_image import load_probe_image, with_environment

pytestmark = pytest.mark.docker

PROBE = Path(probe.__file__).read_text(encoding="utf-8")
COMMAND = ["python3", "-c", PROBE]
FIRST, SECOND, INSTANCE = "0", "1", "3:0"
EVERY_GPU = "NVIDIA_VISIBLE_DEVICES=all"


def node_of(gpus: SimulatedGPUs) -> Node:
    """The node as an inventory would describe it."""

    def own(device: Device, above: int) -> tuple[str, ...]:
        return device.nodes[above:]

    def instances(gpu: Device) -> tuple[MIGInstance, ...]:
        below = (device for device in gpus.devices if device.is_mig and device.key.startswith(f"{gpu.key}:"))
        return tuple(
            MIGInstance(uuid=mig.uuid, profile="3g.20gb", memory_bytes=1, devices=own(mig, len(gpu.nodes)))
            for mig in below
        )

    return Node(
        name="here",
        gpus=tuple(
            GPU(
                uuid=gpu.uuid,
                index=index,
                name="simulated",
                memory_bytes=1,
                compute_capability=80,
                mig=instances(gpu),
                devices=own(gpu, len(COMMON)),
            )
            for index, gpu in enumerate(device for device in gpus.devices if not device.is_mig)
        ),
        simulated=True,
    )


class Site:
    """An engine together with the injection that fits it."""

    def __init__(self, engine: PrivateEngine, injection: Injection) -> None:
        self.engine = engine
        self.injection = injection
        self.image = load_probe_image(engine, STATE.parent / "cache")
        self.greedy_image = with_environment(engine, self.image, EVERY_GPU)

    def arguments(self, keys: Sequence[str], *, uuids: Sequence[str] | None = None, **options: Any) -> dict[str, Any]:
        """Create arguments of a container that was granted the devices with these keys."""
        granted = uuids or [self.engine.gpus.device(key).uuid for key in keys]
        injected: Injected = self.injection.inject(granted, node_of(self.engine.gpus))
        mounts = [
            docker.types.Mount(
                type=mount["type"], source=mount["source"], target=mount["target"], read_only=mount["read_only"]
            )
            for mount in injected.mounts
        ]
        environment = {**options.pop("environment", {}), **injected.environment}
        return {**options, **injected.host_config, "mounts": mounts, "environment": environment}

    def look(self, keys: Sequence[str], *, image: str = "", **options: Any) -> dict[str, Any]:
        """What a container that was granted these devices sees."""
        printed = self.engine.output_of(image or self.image, COMMAND, **self.arguments(keys, **options))
        return dict(json.loads(printed))


def hook_site(request: pytest.FixtureRequest, name: str) -> Site:
    engine: PrivateEngine = request.getfixturevalue(name)
    if engine.cgroup_version != "1":
        pytest.skip(
            "the stand-in for NVIDIA's hook writes cgroup version 1 only; the cdi rows show the same on version 2"
        )
    return Site(engine, NvidiaInjection())


def make_site(request: pytest.FixtureRequest, kind: str) -> Site:
    """The site of a kind; its engine is started by the first test that asks for it."""
    if kind == "nvidia":
        return hook_site(request, "engine")
    if kind == "nvidia-default-runtime":
        return hook_site(request, "default_runtime_engine")
    if kind == "cdi":
        return Site(request.getfixturevalue("cdi_engine"), CDIInjection())
    engine: PrivateEngine = request.getfixturevalue("engine")
    return Site(engine, NodesInjection(device_dir=str(engine.gpus.device_dir), files=engine.gpus.files))


@pytest.fixture(params=["nvidia", "nodes", "cdi"], scope="module")
def site(request: pytest.FixtureRequest) -> Site:
    return make_site(request, request.param)


@pytest.fixture(params=["nvidia", "nodes", "cdi", "nvidia-default-runtime"], scope="module")
def any_site(request: pytest.FixtureRequest) -> Site:
    """Also the engine that would listen to a container's environment."""
    return make_site(request, request.param)


def seen_by(site: Site, *keys: str) -> dict[str, Any]:
    """What the holder of these devices is to see; every other GPU's number is refused by the cgroup."""
    devices = [site.engine.gpus.device(key) for key in keys]
    nodes = {name for device in devices for name in device.nodes}
    minors = [int(gpu.nodes[-1].removeprefix("nvidia")) for gpu in site.engine.gpus.devices if not gpu.is_mig]
    return {
        "nodes": sorted(nodes),
        "opened": {str(minor): "ENXIO" if f"nvidia{minor}" in nodes else "EPERM" for minor in minors},
        "nvml": sorted(device.uuid for device in devices),
    }


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in ("nodes", "opened", "nvml")}


@pytest.mark.parametrize("keys", [[FIRST], [FIRST, SECOND], [INSTANCE]], ids="+".join)
def test_a_container_holds_exactly_what_it_was_granted(site: Site, keys: list[str]) -> None:
    assert shown(site.look(keys)) == seen_by(site, *keys)


def test_two_containers_at_once_hold_different_gpus(site: Site) -> None:
    idle = ["sleep", "600"]
    with (
        site.engine.container(site.image, idle, **site.arguments([FIRST])) as one,
        site.engine.container(site.image, idle, **site.arguments([SECOND])) as two,
    ):
        for container in (one, two):
            container.start()
        answers = [json.loads(site.engine.output_in(container, COMMAND)) for container in (one, two)]
    assert [shown(answer) for answer in answers] == [seen_by(site, FIRST), seen_by(site, SECOND)]


def test_a_container_without_a_gpu_sees_none(site: Site) -> None:
    answer = site.look([])
    assert shown(answer) == seen_by(site) | {"nvml": "Driver Not Loaded or no library"}


def test_all_gpus_in_the_image_or_the_environment_grant_nothing(any_site: Site) -> None:
    answer = any_site.look([], image=any_site.greedy_image, environment=dict([EVERY_GPU.split("=")]))
    assert answer["nodes"] == []
    assert answer["visible"] == "void"


def test_all_gpus_in_the_image_or_the_environment_add_nothing_to_a_grant(any_site: Site) -> None:
    answer = any_site.look([SECOND], image=any_site.greedy_image, environment=dict([EVERY_GPU.split("=")]))
    assert shown(answer) == seen_by(any_site, SECOND)


@pytest.mark.parametrize("keys", [[SECOND], [INSTANCE]], ids="+".join)
def test_a_grant_works_without_root_and_capabilities(site: Site, keys: list[str]) -> None:
    answer = site.look(
        keys, user="4242:4242", cap_drop=["ALL"], security_opt=["no-new-privileges"], read_only=True, tmpfs={"/tmp": ""}
    )
    wanted = seen_by(site, *keys)
    assert (answer["nodes"], answer["nvml"]) == (wanted["nodes"], wanted["nvml"])


def test_an_unknown_uuid_is_refused_and_leaves_no_container(site: Site) -> None:
    wrong = ["GPU-00000000-0000-0000-0000-000000000000"]
    before = site.engine.client.api.containers(all=True)
    with pytest.raises((docker.errors.APIError, KeyError), match=wrong[0]):
        site.engine.output_of(site.image, COMMAND, **site.arguments([], uuids=wrong))
    assert site.engine.client.api.containers(all=True) == before


def test_the_hostile_engine_would_grant_all_without_our_environment(request: pytest.FixtureRequest) -> None:
    """The rows above would prove nothing on an engine that ignores the environment anyway."""
    site = hook_site(request, "default_runtime_engine")
    answer = json.loads(site.engine.output_of(site.greedy_image, COMMAND))
    assert [number for number in answer["opened"].values() if number == "EPERM"] == []
