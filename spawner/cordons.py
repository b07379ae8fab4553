"""What the operator has closed, as the hub knows it: read from SQL, so that a drain works with the hub up or down.

Reading never holds up a start for longer than its limit: a database in trouble leaves what was known last.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from spawner.records import TROUBLE, Cordon

__all__ = ["Cordons"]

LOG = logging.getLogger(__name__)
LIMIT_S = 1.0


class Cordons:
    """The latest answer of the database.

    Parameters
    ----------
    read
        Lists the cordons; blocks, and is called in a thread.
    """

    def __init__(self, read: Callable[[], Sequence[Cordon]]) -> None:
        self._read = read
        self._reading: asyncio.Task[None] | None = None
        self._trouble = False
        self.known: tuple[Cordon, ...] = ()

    @property
    def closed(self) -> frozenset[str]:
        """GPU UUIDs and node names that get no new leases."""
        return frozenset(cordon.target for cordon in self.known)

    async def refresh(self, limit_s: float = LIMIT_S) -> None:
        """Read anew, at most one at a time; after the limit the last answer holds and the reading goes on."""
        if self._reading is not None:  # it may have begun before the change that this caller must see
            await asyncio.wait([self._reading], timeout=limit_s)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._refresh())
            await asyncio.wait([self._reading], timeout=limit_s)

    async def _refresh(self) -> None:
        try:
            self.known = tuple(await asyncio.to_thread(self._read))
        except TROUBLE as error:
            if not self._trouble:
                LOG.error("what is cordoned cannot be read, the last answer holds: %s", str(error).splitlines()[0])  # noqa: TRY400
            self._trouble = True
        else:
            self._trouble = False
