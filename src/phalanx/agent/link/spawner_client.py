"""The link's end of the socket: connects to the spawner of a state directory, or starts one."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import structlog

from phalanx.agent.messages import (
    FrameDecoder,
    LinkMessage,
    SpawnerMessage,
    decode_spawner_message,
    frame,
)
from phalanx.agent.state_dir import StateDir, short_path

_READ_BYTES = 256 * 1024
#: A new spawner first cleans up after an earlier one; until then it refuses connections.
_CONNECT_INTERVAL_S = 0.02
#: A spawner that failed to start is started again after this time.
_RESTART_S = 1.0
#: A spawner exits at once while an earlier one still runs; then the first starts follow quickly.
_QUICK_STARTS = 5


class SpawnerClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, state_dir: StateDir) -> "SpawnerClient":
        """Connect to the spawner, and start it first if it does not run."""
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        starting: int | None = None
        starts = 0
        while True:
            with (
                suppress(OSError),
                short_path(state_dir.socket) as name,
            ):
                return cls(*await asyncio.open_unix_connection(name))
            if starting is not None:
                ended, status = os.waitpid(starting, os.WNOHANG)
                if ended and (status or starts >= _QUICK_STARTS):
                    log.error("spawner failed to start", see=str(state_dir.spawner_log))
                    await asyncio.sleep(_RESTART_S)
                starting = None if ended else starting
            if starting is None:
                starting, starts = _start(state_dir), starts + 1
            await asyncio.sleep(_CONNECT_INTERVAL_S)

    def send(self, *messages: LinkMessage) -> None:
        self._writer.write(b"".join(map(frame, messages)))

    async def messages(self) -> AsyncIterator[SpawnerMessage]:
        """The messages of the spawner, until the connection ends."""
        decoder = FrameDecoder()
        while data := await self._read():
            for body in decoder.feed(data):
                yield decode_spawner_message(body)

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.close()


def _start(state_dir: StateDir) -> int:
    """Start a spawner and return its pid.

    It has a session of its own, so that it outlives the link and gets no signal of its terminal.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        (sys.executable, "-P", "-m", "phalanx.agent.spawner", str(state_dir.path)),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(state_dir.spawner_log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
    )
