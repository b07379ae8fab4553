"""How far a start has come, for everybody who looks at it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from spawner.messages import Language, Phase, phase

__all__ = ["Progress"]

_PERCENT = {
    Phase.CHECKED: 10,
    Phase.HOME: 20,
    Phase.PLACED: 30,
    Phase.CREATED: 50,
    Phase.STARTED: 60,
    Phase.ANSWERS: 95,
}


class Progress:
    """The steps of one start, in the order in which they were told."""

    def __init__(self) -> None:
        self._told: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    def tell(self, step: Phase, language: Language, **values: str | int | float) -> None:
        """Note a step and wake whoever looks."""
        self._told.append({"progress": _PERCENT[step], "message": phase(step, language, **values)})
        self._news.set()

    def clear(self) -> None:
        """Forget the steps of an earlier start."""
        self._told.clear()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Give the steps so far, then each one as it happens, as JupyterHub's progress wants them; never ends."""
        seen = 0
        while True:
            for event in self._told[seen:]:
                yield event
            seen = len(self._told)
            self._news.clear()
            await self._news.wait()
