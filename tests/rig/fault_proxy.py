"""A socket in front of the engine's own that can be told to fail, as engines do: answer 500, hang, refuse."""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

__all__ = ["Fault", "FaultProxy"]

_ERROR = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b'Content-Length: 28\r\n\r\n{"message":"engine trouble"}'
)


class Fault(Enum):
    """What the proxy does with a request."""

    NONE = auto()
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
        if fault is not Fault.NONE:
            self.cut()

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
        if self.fault is not Fault.NONE and self.only(first.decode("latin-1")):
            if self.fault is Fault.ERROR:
                writer.write(_ERROR)
                await writer.drain()
            elif self.fault is Fault.HANG:
                await asyncio.sleep(3600)
            return
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        try:
            # one request for each connection: the next one is looked at again
            up_writer.write(first + b"Connection: close\r\n")
            await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer, close=True))
        finally:
            up_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, close: bool = False) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        if close:
            target.close()
