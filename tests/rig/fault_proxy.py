"""A socket in front of the engine's own that can be told to fail, as engines do: be slow, answer 500, hang, refuse.

It also counts calls and runs a function at the k-th, before the engine gets it or after the engine has carried it out
and before anybody knows: there a hub is killed or a start cancelled.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from pathlib import Path

__all__ = ["Fault", "FaultProxy", "is_own_call"]

Act = Callable[[], Awaitable[None] | None]


def is_own_call(line: str) -> bool:
    """Whether a request belongs to somebody's start or stop, not to the hub's following of the engine."""
    following = "/events" in line or "/version" in line or ("/containers/json" in line and "lease%3D" not in line)
    return not following


class Fault(Enum):
    """What the proxy does with a request."""

    NONE = auto()
    DELAY = auto()
    ERROR = auto()
    HANG = auto()
    REFUSE = auto()


class FaultProxy:
    """Passes bytes to a Unix socket; `fault` applies to requests whose first line satisfies `only`, from now on."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix://")
        self._folder = tempfile.TemporaryDirectory(prefix="gpucampus-proxy-")
        self._path = Path(self._folder.name) / "sock"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.fault = Fault.NONE
        self.only: Callable[[str], bool] = lambda _line: True
        self.delay_s = 1.0
        self.words = "engine trouble"
        self.calls: list[str] = []
        self._act: Act | None = None
        self._act_in, self._act_after = 0, False

    @property
    def url(self) -> str:
        """The proxy's address, as DOCKER_HOST has it."""
        return f"unix://{self._path}"

    async def __aenter__(self) -> "FaultProxy":
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._folder.cleanup()

    def cut(self) -> None:
        """Cut every connection, the event stream's too."""
        for writer in tuple(self._open):
            writer.close()

    def set(self, fault: Fault, only: Callable[[str], bool] = lambda _line: True) -> None:
        """Fail from now on; connections that are open are cut, so that kept-alive ones meet the fault, too."""
        self.fault, self.only = fault, only
        self.calls = []
        if fault is not Fault.NONE:
            self.cut()

    def at(self, number: int, act: Act, *, after: bool = False) -> None:
        """Run `act` once at the number-th own call from now on, which is counted from 1; `calls` begins anew."""
        self._act, self._act_in, self._act_after = act, number, after
        self.calls = []

    async def _reached(self, line: str) -> Act | None:
        """Count a call; the act if this is the one, and it is for after the call."""
        if not is_own_call(line):
            return None
        self.calls.append(line.split(" HTTP/", maxsplit=1)[0])
        if self._act is None or len(self.calls) != self._act_in:
            return None
        act, self._act = self._act, None
        if self._act_after:
            return act
        await _run(act)
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._pass(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        if not first:
            return
        line = first.decode("latin-1")
        act = await self._reached(line)
        if self.fault is not Fault.NONE and self.only(line):
            if self.fault is Fault.ERROR:
                writer.write(self._error())
                await writer.drain()
            elif self.fault is Fault.HANG:
                await asyncio.sleep(3600)
            if self.fault is not Fault.DELAY:
                return
            await asyncio.sleep(self.delay_s)
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        try:
            # one request for each connection: the next one is looked at again
            up_writer.write(first + b"Connection: close\r\n")
            await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer, close=True, first=act))
        finally:
            up_writer.close()

    def _error(self) -> bytes:
        body = json.dumps({"message": self.words}).encode()
        head = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _run(act: Act) -> None:
    waiting = act()
    if waiting is not None:
        await waiting


async def _copy(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, *, close: bool = False, first: Act | None = None
) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            if first:
                await _run(first)
                first = None
            target.write(data)
            await target.drain()
        if close:
            target.close()
