"""Asks `_home_child.py`, the program that touches file systems which may hang, and never waits for it too long."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spawner.core.model import Code, Refusal

__all__ = ["HomeChild"]

_CHILD = Path(__file__).with_name("_home_child.py")
_ANSWER_LIMIT = 64 << 20
_CHILDREN = 8  # at once; so many processes at most hang on a dead NAS


class HomeChild:
    """One file system's questions: while one of them hangs, no other is sent."""

    def __init__(self) -> None:
        self._stuck: list[asyncio.subprocess.Process] = []
        self._places = asyncio.Semaphore(_CHILDREN)

    async def ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:  # noqa: ANN401  # the child's JSON
        """Send one request to a new child and give what it answers, or why there is no answer."""
        async with self._places:
            self._stuck = [child for child in self._stuck if child.returncode is None]
            if self._stuck:
                return Refusal.of(Code.HOME_UNAVAILABLE, why="an earlier access still hangs")
            return await self._run(request, timeout_s)

    async def _run(self, request: Mapping[str, Any], timeout_s: float) -> Any:  # noqa: ANN401  # the child's JSON
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", str(_CHILD)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_ANSWER_LIMIT,
        )
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await child.communicate(json.dumps(request).encode())
        except TimeoutError:
            self._stuck.append(child)
            return Refusal.of(Code.HOME_UNAVAILABLE, why=f"no answer within {timeout_s:g} s")
        finally:
            if child.returncode is None:
                child.kill()  # and never waited for: on a dead mount it does not die
        if child.returncode != 0:
            raise RuntimeError(f"{_CHILD.name} ended with {child.returncode}: {err.decode(errors='replace')[-2000:]}")
        answer = json.loads(out)
        return answer["ok"] if "ok" in answer else Refusal.of(Code(answer["code"]), **answer["params"])
