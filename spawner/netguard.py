"""Keeps the packet filter in place while the hub runs, and knows what the last self-check of the network found.

The check waits for the hub to answer and runs beside it, so nothing waits for the check. Where it finds that containers
do not reach the hub, a start is refused with the reason instead of a time-out, until a new look finds them let through.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from spawner import netfilter
from spawner.core.model import Code, Refusal
from spawner.findings import Finding, Status
from spawner.lanes import Lane
from spawner.netcheck import Report, hub_answers, look
from spawner.netfilter import FilterError
from spawner.settings import Settings

__all__ = ["NetworkGuard", "build_filter"]

LOG = logging.getLogger(__name__)
LIMIT_S = 60.0
HUB_LIMIT_S = 120.0
HUB_STEP_S = 0.5
LOOK_AGAIN_S = 5.0  # a start that is refused looks again, but no more often than this
_LEVEL = {Status.OK: logging.INFO, Status.WARN: logging.WARNING, Status.FAIL: logging.ERROR}


def build_filter(settings: Settings) -> None:
    """Make the packet filter anew; where it cannot be made, the log says so and the self-check finds it. Blocks."""
    try:
        netfilter.establish(netfilter.filter_of(settings))
    except FilterError as error:
        LOG.error("containers are NOT kept from this machine's ports and networks: %s", error)  # noqa: TRY400 - for the operator


class NetworkGuard:
    """The network, as the hub knows it.

    Parameters
    ----------
    settings
        The hub's settings.
    looks
        Looks at the network, or with True only at the way to the hub; blocks.
    answers
        Whether the hub answers this machine; blocks.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        looks: Callable[[bool], Report] | None = None,
        answers: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.report = Report(())
        self._looks = looks or (lambda hub_only: look(settings, hub_only=hub_only))
        self._answers = answers or (lambda: hub_answers(settings))
        self._clock = clock
        self._looked = 0.0
        self._lane = Lane("network-check", 1)
        self._one_look = asyncio.Lock()
        self._first: asyncio.Task[None] | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the last whole self-check found; empty until it is done."""
        return self.report.findings

    def begin(self) -> None:
        """Check beside the hub's start."""
        self._first = asyncio.create_task(self._look_once())

    def close(self) -> None:
        """Give up a check under way; its containers end by themselves."""
        if self._first:
            self._first.cancel()
        self._lane.close()

    async def tend(self) -> None:
        """See that the filter is still there, and look again where containers did not reach the hub."""
        try:
            if not await self._lane.run(lambda: netfilter.present(self.settings.network.bridge), LIMIT_S):
                LOG.warning("the packet filter was gone and is made anew: something flushed it")
                await self._lane.run(lambda: build_filter(self.settings), LIMIT_S)
        except (FilterError, TimeoutError) as error:
            LOG.debug("the packet filter cannot be looked at: %s", error)
        if self.report.blocked_by:
            await self.refusal()

    async def refusal(self) -> Refusal | None:
        """Why no server can start for lack of a way to the hub; None where there is one, or nobody has looked yet."""
        if not self.report.blocked_by:
            return None
        async with self._one_look:
            if self.report.blocked_by and self._clock() - self._looked >= LOOK_AGAIN_S:
                await self._look(hub_only=True)
        if not self.report.blocked_by:
            return None
        return Refusal.of(Code.HUB_BLOCKED, firewall=self.report.blocked_by, port=self.settings.hub.hub_port)

    async def _look_once(self) -> None:
        end = self._clock() + HUB_LIMIT_S
        while self._clock() < end:
            if await self._lane.run(self._answers, LIMIT_S):
                break
            await asyncio.sleep(HUB_STEP_S)
        async with self._one_look:
            await self._look(hub_only=False)

    async def _look(self, *, hub_only: bool) -> None:
        """Look and log what is new; a look that fails leaves what was known."""
        known = set(self.report.findings)
        try:
            found = await self._lane.run(lambda: self._looks(hub_only), LIMIT_S)
        except Exception:
            LOG.exception("the self-check of the network failed")
            return
        finally:
            self._looked = self._clock()
        if hub_only:
            names = {finding.check for finding in found.findings}
            kept = tuple(finding for finding in self.report.findings if finding.check not in names)
            found = Report((*kept, *found.findings), found.blocked_by)
        self.report = found
        for finding in found.findings:
            if finding not in known:
                after = f": {finding.remedy}" if finding.remedy else ""
                LOG.log(_LEVEL[finding.status], "network: %s: %s%s", finding.check, finding.text, after)
