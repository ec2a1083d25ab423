"""The link's end of the socket: finds the spawner of the state directory, or starts one."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import structlog

from phalanx.agent.messages import Frames, Order, Told, framed, read_told
from phalanx.agent.state_dir import StateDir, near

_READ_BYTES = 256 * 1024
#: A new spawner first ends what an earlier one left; meanwhile it does not answer.
_AGAIN_S = 0.02
#: One that cannot begin would not do so a moment later.
_FAILED_S = 1.0


class SpawnerClient:
    """The spawner, as long as the connection to it lasts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def find(cls, places: StateDir) -> "SpawnerClient":
        """Starts one if there is none."""
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        started: int | None = None
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError), near(places.socket) as name:
                return cls(*await asyncio.open_unix_connection(name))
            if started is not None:
                ended, status = os.waitpid(started, os.WNOHANG)
                if ended and status:
                    log.error("spawner failed", see=str(places.spawner_log))
                    await asyncio.sleep(_FAILED_S)
                started = None if ended else started
            if started is None:
                started = _start(places)
            await asyncio.sleep(_AGAIN_S)

    def send(self, *orders: Order) -> None:
        self._writer.write(b"".join(map(framed, orders)))

    async def tells(self) -> AsyncIterator[Told]:
        """What it tells, until it is gone."""
        frames = Frames()
        while data := await self._read():
            for body in frames.feed(data):
                yield read_told(body)

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.close()


def _start(places: StateDir) -> int:
    """In a session of its own: it outlives us and hears no signal of our terminal."""
    to_log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        (sys.executable, "-P", "-m", "phalanx.agent.spawner.spawner", str(places.state)),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(places.spawner_log), to_log, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
    )
