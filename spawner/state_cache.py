"""The containers with a lease, as the engine's last words have it.

An entry leaves only on the engine's word: a destroy event, or a 404 for that very container. A listing alone never
removes one, since it may be older than a container that was just made. Nor does it turn back what is known since it was
asked for. And an event never brings back a container that a later listing did not have: the engine repeats the events
of the last second to whoever subscribes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spawner.core.ledger import LABEL, Container

__all__ = ["StateCache"]

_STATES = {"create": "created", "start": "running", "unpause": "running", "pause": "paused", "die": "exited"}
_GONE_KEPT = 10_000


class StateCache:
    """The containers that carry a lease label, by id, as the last words of the engine have it.

    An id is never given out twice, so a container that is gone stays gone, whatever arrives late.
    """

    def __init__(self) -> None:
        self._containers: dict[str, Container] = {}
        self._changes: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        self.version = 0
        self._asked_ns: float = math.inf  # until a listing has been asked for, it will know better than any event
        self.fresh = False
        self.on_drop: Callable[[Container], None] = lambda _gone: None

    def __iter__(self) -> Iterator[Container]:
        return iter(tuple(self._containers.values()))

    def put(self, container: Container) -> None:
        """Note a container that the engine told of."""
        if container.id not in self._gone:
            self.version += 1
            self._containers[container.id], self._changes[container.id] = container, self.version

    def drop(self, container_id: str) -> Container | None:
        """Forget a container that the engine says is gone; returns what was known of it."""
        self._gone[container_id] = None
        while len(self._gone) > _GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        self._changes.pop(container_id, None)
        gone = self._containers.pop(container_id, None)
        if gone is not None:
            self.on_drop(gone)
        return gone

    def get(self, container_id: str) -> Container | None:
        """Find a container by its id."""
        return self._containers.get(container_id)

    def by_lease(self, lease_id: str) -> Container | None:
        """Find the container of a lease."""
        return next((c for c in self._containers.values() if c.labels.get(LABEL + "lease") == lease_id), None)

    def asked(self, at_ns: int) -> int:
        """Note that a listing is asked for at a time (ns since 1970); returns what `merge` wants to know of that."""
        self._asked_ns = at_ns
        return self.version

    def merge(self, listing: list[Container], since: int) -> list[str]:
        """Take in a listing, with what `asked` returned; returns the known ids that it lacks, to be asked for."""
        listed = {container.id for container in listing}
        missing = [key for key in self._containers if key not in listed]
        for container in listing:
            if self._changes.get(container.id, 0) <= since:
                self.put(container)
        return missing

    def apply(self, event: Mapping[str, Any]) -> Container | None:
        """Take in one event; returns a container that ended or is gone, as it was known until then."""
        action, actor = str(event.get("Action", "")), event.get("Actor", {})
        container_id, attributes = str(actor.get("ID", "")), actor.get("Attributes", {})
        known = self.get(container_id)
        if action == "destroy":
            return self.drop(container_id)
        state = _STATES.get(action)
        if state is None or (action == "create" and known):  # the news of its making comes last, it may run already
            return None
        if known is None and (action == "die" or int(event.get("timeNano", 0)) <= self._asked_ns):
            return None  # it is gone already, or else the next listing has it
        told = {key: str(value) for key, value in attributes.items() if key.startswith(LABEL)}
        name = known.name if known else str(attributes.get("name", ""))
        now = Container(id=container_id, name=name, state=state, labels=known.labels if known else told)
        self.put(now)
        return self.get(container_id) if now.ended else None
