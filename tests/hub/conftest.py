"""A whole hub for the tests of this folder, and its people."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import STATE
from tests.hub.person import Person, sign_in
from tests.rig.demo_hub import DemoHub
from tests.rig.engine import PrivateEngine


@pytest.fixture(scope="session")
def demo_hub(engine: PrivateEngine) -> Iterator[DemoHub]:
    """The hub of `make run` on the private engine, with the demo's accounts."""
    hub = DemoHub(engine, STATE / "demo-hub")
    hub.prepare()
    try:
        hub.start()
        yield hub
    finally:
        hub.stop()


@pytest.fixture(scope="session")
def people(demo_hub: DemoHub) -> dict[str, Person]:
    """Everybody of the demo, signed in."""
    found = {name: sign_in(demo_hub, name, password) for name, password in demo_hub.accounts.items()}
    assert all(person for person, _ in found.values()), {name: page.text[:300] for name, (_, page) in found.items()}
    return {name: person for name, (person, _) in found.items() if person}


@pytest.fixture
def stopped(people: dict[str, Person]) -> Iterator[Callable[[], None]]:
    """Nobody has a server when a test begins or ends."""

    def stop_all() -> None:
        for person in people.values():
            for server in list(person.api("GET", f"/users/{person.name}").json()["servers"]):
                person.stop(server)

    stop_all()
    yield stop_all
    stop_all()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the hub's logs to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined] # pluggy's result
    hub = getattr(item, "funcargs", {}).get("demo_hub")
    if report.failed and isinstance(hub, DemoHub):
        report.sections.append(("the hub's logs", hub.describe()))
