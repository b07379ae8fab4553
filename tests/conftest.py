"""Fixtures of all tests. Nothing here starts by itself: a test that names no fixture needs no engine and no root."""

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.demo.gpus.make import SimulatedGPUs, build, read_inventory
from tests.rig.namespace import enter_network_namespace

ROOT = Path(__file__).resolve().parent.parent
STATE = Path(os.environ.get("GPUCAMPUS_TEST_STATE", ROOT / ".state")) / "test-engine"
NEEDS_ENGINE = ("docker", "hub", "browser", "images", "reliability")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what compiles the stand-in driver library, so that unmarked tests need no compiler."""
    for item in items:
        if not {"plain_gpus", "own_gpus", "device_gpus"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.gcc)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Move into a network namespace before anything has started a thread, when a selected test needs an engine."""
    if session.config.option.collectonly:
        return
    if not any(item.get_closest_marker(name) for item in session.items for name in NEEDS_ENGINE):
        return
    try:
        enter_network_namespace()
        if any("demo_hub" in getattr(item, "fixturenames", ()) for item in session.items):
            _build_demo_image()
    except (OSError, RuntimeError, AssertionError) as error:
        pytest.exit(str(error), returncode=1)


def _build_demo_image() -> None:
    """Build the image of the demo's hub before any test's clock runs: the first time it takes minutes."""
    from deploy.image_recipe import read_catalog  # noqa: PLC0415 - pure tests need no docker package
    from tests.rig.binaries import find_dockerd  # noqa: PLC0415

    for engine in _running("main", find_dockerd(), build(STATE / "gpus"), {}):
        engine.build_variant(read_catalog().usual[0].name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the containers' state and output to the report of a failed test."""
    outcome: Any = yield
    report = outcome.get_result()
    if not report.failed or report.when == "teardown":
        return
    for name, value in getattr(item, "funcargs", {}).items():
        describe = getattr(value, "describe", None)
        if callable(describe):
            report.sections.append((f"what the fixture {name} says", _described(describe)))


def _described(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except Exception as error:  # noqa: BLE001 - it may be what failed; the test's own failure is to be read
        return f"(no answer: {error})"


@pytest.fixture(scope="session")
def plain_gpus(tmp_path_factory: pytest.TempPathFactory) -> SimulatedGPUs:
    """Simulated GPUs with ordinary files for nodes: no root, no engine. Not to be changed; see `own_gpus`."""
    return build(tmp_path_factory.mktemp("gpus"), plain=True)


@pytest.fixture
def own_gpus(plain_gpus: SimulatedGPUs, tmp_path: Path) -> SimulatedGPUs:
    """A copy of the simulated GPUs whose inventory and nodes a test may change."""
    folder = tmp_path / "gpus"
    shutil.copytree(plain_gpus.folder, folder)
    return SimulatedGPUs(folder=folder, devices=read_inventory(folder / "inventory.ini"))


@pytest.fixture(scope="session")
def device_gpus() -> SimulatedGPUs:
    """Simulated GPUs with real device nodes, as the engines get them."""
    shutil.rmtree(STATE / "gpus", ignore_errors=True)
    return build(STATE / "gpus")


@pytest.fixture(scope="session")
def engine(device_gpus: SimulatedGPUs) -> Iterator[Any]:
    """The machine's own Docker, started privately, with the stand-in hook on its PATH."""
    from tests.rig.binaries import find_dockerd  # noqa: PLC0415

    yield from _running("main", find_dockerd(), device_gpus, {})


@pytest.fixture(scope="session")
def default_runtime_engine(device_gpus: SimulatedGPUs) -> Iterator[Any]:
    """An engine whose default runtime is NVIDIA's, so that a container's environment alone could grant GPUs."""
    from tests.rig.binaries import find_dockerd  # noqa: PLC0415
    from tests.rig.engine import HOOKS  # noqa: PLC0415

    runtimes = {"nvidia": {"path": str(HOOKS / "nvidia-container-runtime")}}
    yield from _running(
        "default-runtime", find_dockerd(), device_gpus, {"runtimes": runtimes, "default-runtime": "nvidia"}
    )


@pytest.fixture(scope="session")
def cdi_engine(device_gpus: SimulatedGPUs) -> Iterator[Any]:
    """A Docker that knows CDI (26.1 or newer), with the spec of the simulated GPUs."""
    from tests.rig.binaries import find_newer_dockerd  # noqa: PLC0415

    config = {"features": {"cdi": True}, "cdi-spec-dirs": [str(device_gpus.cdi_dir)]}
    yield from _running("cdi", find_newer_dockerd(STATE), device_gpus, config)


@pytest.fixture(scope="session")
def demo_hub(engine: Any) -> Iterator[Any]:
    """All that `make run` starts, on the private engine, with the demo's accounts."""
    from tests.rig.demo_hub import DemoHub  # noqa: PLC0415

    hub = DemoHub(engine, STATE / "hub")
    hub.prepare()
    try:
        hub.start()
        yield hub
    finally:
        hub.stop()


@pytest.fixture(scope="session")
def probe_image(engine: Any) -> str:
    """The id of a small image with Python, in the private engine."""
    from tests.rig.probe_image import load_probe_image  # noqa: PLC0415

    return load_probe_image(engine, STATE.parent / "cache")


@pytest_asyncio.fixture
async def campaign(engine: Any, probe_image: str, tmp_path: Path) -> AsyncIterator[Any]:
    """The engine behind a proxy that fails, and a hub process of the product's arbiter alone."""
    from tests.reliability.campaign import Campaign  # noqa: PLC0415

    async with Campaign.on(engine, probe_image, tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def hub_campaign(request: pytest.FixtureRequest, engine: Any, probe_image: str) -> AsyncIterator[Any]:
    """A real JupyterHub behind that proxy, with six people; lines of its configuration may be a test's parameter."""
    from tests.reliability.hub_campaign import HubCampaign  # noqa: PLC0415

    config = getattr(request, "param", ())
    async with HubCampaign.on(engine, probe_image, STATE / "lean", config=config) as made:
        yield made


def _running(name: str, dockerd: Path, gpus: SimulatedGPUs, config: dict[str, Any]) -> Iterator[Any]:
    from tests.rig.engine import PrivateEngine  # noqa: PLC0415

    private = PrivateEngine(name, dockerd=dockerd, cache=STATE, gpus=gpus, config=config)
    try:
        private.start()
        yield private
    finally:
        private.stop()
