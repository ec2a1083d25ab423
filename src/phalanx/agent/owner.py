"""The link's end of the socket: finds the spawner of the state directory, or starts one."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from phalanx.agent.messages import Frames, Order, Told, framed, read_told
from phalanx.agent.places import Places, near

_READ_BYTES = 256 * 1024
#: A new spawner first ends what an earlier one left; meanwhile it does not answer.
_AGAIN_S = 0.02


class Owner:
    """The spawner, as long as the connection to it lasts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def find(cls, places: Places) -> "Owner":
        """Starts one if there is none."""
        process: asyncio.subprocess.Process | None = None
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError), near(places.socket) as name:
                return cls(*await asyncio.open_unix_connection(name))
            if process is None or process.returncode is not None:
                process = await _start(places)
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


async def _start(places: Places) -> asyncio.subprocess.Process:
    """In a session of its own: it outlives us and hears no signal of our terminal."""
    log = os.open(places.spawner_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "phalanx.agent.spawner", str(places.state)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path("/"),
            start_new_session=True,
        )
    finally:
        os.close(log)
