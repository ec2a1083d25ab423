"""A proxy for PostgreSQL that breaks the connection, or goes silent, at a chosen message."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto

#: A message of the simple protocol; nothing else that is sent ends like this.
COMMIT = b"COMMIT\0"
#: The statement that writes workers, half way through a transaction.
WORKERS = b"INSERT INTO workers"


class Fault(Enum):
    CUT_BEFORE = auto()  #: the message is lost, and both ends see the connection break
    CUT_AFTER = auto()  #: the message arrives, and the connection breaks before the answer
    SILENCE = auto()  #: the message is held back, and neither end receives anything again


class Proxy:
    """Passes bytes between clients and one server. A fault is armed for one message."""

    def __init__(self, server: str | tuple[str, int]) -> None:
        self.port = 0
        self.tripped = asyncio.Event()
        self._server = server
        self._armed: tuple[bytes, Fault] | None = None
        self._held: list[tuple[StreamWriter, bytes]] = []
        self._wires: set[asyncio.Task[None]] = set()

    def arm(self, message: bytes, fault: Fault) -> None:
        self._armed = (message, fault)
        self.tripped.clear()

    async def deliver_late(self) -> None:
        """Deliver the messages that were held back, as a network that recovers."""
        for writer, chunk in self._held:
            with suppress(OSError):
                writer.write(chunk)
                await writer.drain()
        self._held.clear()

    async def connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._wires.add(task)
        far_reader, far_writer = await self._reach()
        wire = _Wire(self, writer, far_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(wire.outward(reader))
                group.create_task(wire.homeward(far_reader))
        except* (OSError, _CutError):
            pass
        except* asyncio.CancelledError:
            pass  # by `hang_up`; asyncio's server would log it as an error
        finally:
            writer.transport.abort()
            far_writer.transport.abort()
            self._wires.discard(task)

    async def _reach(self) -> tuple[StreamReader, StreamWriter]:
        if isinstance(self._server, str):
            return await asyncio.open_unix_connection(self._server)
        return await asyncio.open_connection(*self._server)

    def fault_for(self, chunk: bytes) -> Fault | None:
        if self._armed is None or self._armed[0] not in chunk:
            return None
        fault, self._armed = self._armed[1], None
        self.tripped.set()
        return fault

    def hold(self, writer: StreamWriter, chunk: bytes) -> None:
        self._held.append((writer, chunk))

    async def hang_up(self) -> None:
        for wire in list(self._wires):
            wire.cancel()
        await asyncio.gather(*self._wires, return_exceptions=True)


class _CutError(Exception):
    """The connection breaks."""


class _Wire:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, near: StreamWriter, far: StreamWriter) -> None:
        self._proxy = proxy
        self._near = near
        self._far = far
        self._fault: Fault | None = None

    async def outward(self, near: StreamReader) -> None:
        while chunk := await near.read(65536):
            self._fault = self._fault or self._proxy.fault_for(chunk)
            if self._fault is Fault.CUT_BEFORE:
                raise _CutError
            if self._fault is Fault.SILENCE:
                self._proxy.hold(self._far, chunk)
                continue
            self._far.write(chunk)
            await self._far.drain()
        if self._fault is not Fault.SILENCE:
            raise _CutError
        # The server must not see that its client has closed the connection.
        await asyncio.get_running_loop().create_future()

    async def homeward(self, far: StreamReader) -> None:
        while chunk := await far.read(65536):
            if self._fault is Fault.CUT_AFTER:
                raise _CutError
            if self._fault is Fault.SILENCE:
                continue
            self._near.write(chunk)
            await self._near.drain()
        if self._fault is not Fault.SILENCE:
            raise _CutError


@asynccontextmanager
async def proxy_to(server: str | tuple[str, int]) -> AsyncIterator[Proxy]:
    proxy = Proxy(server)
    listening = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.hang_up()
