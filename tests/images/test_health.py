"""The check at a start, in the built CPU image: as the spawner starts it, with simulated GPUs, up to what is said."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from spawner import container as spawner_container
from spawner.core.exits import End, EndCode, why_ended
from spawner.core.health import HealthCode
from spawner.core.model import Person
from spawner.docker_api import Engine
from spawner.injection import NodesInjection
from tests.engine.test_injection import node_of
from tests.rig.tools_inside import options, read_only, write_variant

pytestmark = pytest.mark.images

NEEDS_GPU = {"min_driver": "525.60.13"}
PERSON = Person(sub="s", uid=200_000, hub_name="ann", home="200000")


@pytest.fixture(scope="module")
def image(engine: Any) -> str:
    return str(engine.build_variant("cpu"))


@pytest.fixture
def ended(engine: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command as the spawner does, with some GPUs in reach and some leased; how it ended, what it printed."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)

    def run(
        *command: str, said: dict[str, object] | None = None, given: tuple[str, ...] = (), leased: tuple[str, ...] = ()
    ) -> tuple[End, str]:
        uuids = [engine.gpus.device(key).uuid for key in given]
        injected = NodesInjection(device_dir=str(engine.gpus.device_dir), files=engine.gpus.files).inject(
            uuids, node_of(engine.gpus)
        )
        environment = spawner_container.environment(PERSON, injected, [engine.gpus.device(key).uuid for key in leased])
        mounts = [read_only(mount["source"], mount["target"]) for mount in injected.mounts]
        arguments = options(
            write_variant(tmp_path, **(said or {})),
            mounts=mounts,
            environment={key: value for key, value in environment.items() if value is not None} | {"HOME": "/tmp"},
            entrypoint=spawner_container.create_arguments(PERSON, name="x")["entrypoint"],
            **injected.host_config,
        )
        with engine.container(image, list(command), **arguments) as made:
            made.start()
            made.wait(timeout=60)
            final = asyncio.run(_final(made.id))
            return why_ended(final), made.logs().decode()

    return run


async def _final(container_id: str) -> Any:
    engine = Engine()
    try:
        return await engine.final(container_id)
    finally:
        engine.close()


def test_a_healthy_container_becomes_the_server_with_its_arguments(ended: Any) -> None:
    end, printed = ended("sh", "-c", 'echo "$0 and $1"; exit 7', "a b", "c")
    assert (end, printed) == (End(code=EndCode.FAILED, params=(("status", 7),)), "a b and c\n")


def test_the_check_takes_less_than_a_second(ended: Any) -> None:
    end, printed = ended("gpucampus-health", said=NEEDS_GPU, given=("0",), leased=("0",))
    assert end.code is EndCode.FINISHED, printed
    assert json.loads(printed)["seconds"] < 1
    print(f"the check took {printed}")


@pytest.mark.parametrize("keys", [("0",), ("0", "1"), ("3:0",)], ids="+".join)
def test_exactly_the_leased_gpus_are_healthy(ended: Any, keys: tuple[str, ...]) -> None:
    assert ended("true", said=NEEDS_GPU, given=keys, leased=keys)[0].code is EndCode.FINISHED


@pytest.mark.parametrize(
    ("said", "given", "leased", "code"),
    [
        pytest.param(NEEDS_GPU, ("0",), ("0", "1"), HealthCode.GPU_MISSING, id="missing"),
        pytest.param(NEEDS_GPU, ("0", "1"), ("0",), HealthCode.GPU_EXTRA, id="another"),
        pytest.param(NEEDS_GPU, ("0",), (), HealthCode.GPU_EXTRA, id="none-leased"),
        pytest.param(NEEDS_GPU, (), ("0",), HealthCode.DRIVER_SILENT, id="nothing-there"),
        pytest.param({"min_driver": "9999"}, ("0",), ("0",), HealthCode.DRIVER_OLD, id="old-driver"),
        pytest.param({"torch": "2.7.1"}, (), (), HealthCode.VERSION, id="another-torch"),
        pytest.param({"cuda": "12.6"}, (), (), HealthCode.VERSION, id="cpu-build"),
        pytest.param({"architectures": ["?"]}, (), (), HealthCode.BROKEN, id="no-catalog"),
    ],
)
def test_what_is_wrong_starts_no_server_and_is_read_by_the_hub(
    ended: Any, said: dict[str, object], given: tuple[str, ...], leased: tuple[str, ...], code: HealthCode
) -> None:
    end, printed = ended("echo", "the server", said=said, given=given, leased=leased)
    assert end.code is code, printed
    assert "the server" not in printed


def test_nothing_of_the_home_is_read_before(ended: Any) -> None:
    """Modules of a home, named so that the check would import them if it could."""
    setup = "mkdir -p /tmp/site && echo 'raise SystemExit(5)' | tee /tmp/json.py /tmp/site/sitecustomize.py >/dev/null"
    end, printed = ended(
        "sh", "-c", f"{setup}; cd /tmp; PYTHONPATH=/tmp:/tmp/site HOME=/tmp gpucampus-health sh -c 'exit 3'"
    )
    assert dict(end.params) == {"status": 3}, printed


def test_an_image_without_the_check_starts_as_before_and_a_missing_program_is_named(
    engine: Any, probe_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    entrypoint = spawner_container.create_arguments(PERSON, name="x")["entrypoint"]
    assert engine.output_of(probe_image, ["echo", "started"], entrypoint=entrypoint) == "started\n"
    with engine.container(probe_image, ["no-such-program"], entrypoint=entrypoint) as made:
        made.start()
        made.wait(timeout=60)
        end = why_ended(asyncio.run(_final(made.id)))
    assert end.code is EndCode.NOT_STARTED
    assert "no-such-program" in str(dict(end.params)["error"])
