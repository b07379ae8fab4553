"""The people of a whole hub."""

from collections.abc import Callable, Iterator

import pytest

from tests.hub.person import Person, sign_in
from tests.rig.demo_hub import DemoHub


@pytest.fixture(scope="session")
def people(demo_hub: DemoHub) -> dict[str, Person]:
    """Everybody of the demo, signed in."""
    found = {name: sign_in(demo_hub, name, password) for name, password in demo_hub.accounts.items()}
    assert all(person for person, _ in found.values()), {name: page.text[:300] for name, (_, page) in found.items()}
    return {name: person for name, (person, _) in found.items() if person}


@pytest.fixture
def stopped(demo_hub: DemoHub, people: dict[str, Person]) -> Iterator[Callable[[], None]]:
    """Nobody has a server when a test begins or ends."""

    def stop_all() -> None:
        if not demo_hub.running:  # a test that failed half-way
            demo_hub.start()
        for person in people.values():
            for server in list(person.api("GET", f"/users/{person.name}").json()["servers"]):
                person.stop(server)

    stop_all()
    yield stop_all
    stop_all()
