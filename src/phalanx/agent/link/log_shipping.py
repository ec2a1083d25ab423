"""Sends the output of attempts to the server, at a limited rate; far behind, it skips to the end.

Exits are reported independently of it. Output that the server refuses, or cannot take in time, is
given up.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

import msgspec

from phalanx.agent.link.attempt_problems import AttemptProblems
from phalanx.agent.link.leader_client import LeaderClient, Unreachable
from phalanx.agent.messages import AttemptKey
from phalanx.agent.state_dir import OutputFile, StateDir
from phalanx.agent.task_files import UnusableFile

_CHUNK_BYTES = 256 * 1024
#: One chunk of each attempt per interval: this limits the rate of a task to 1 MiB/s.
_INTERVAL_S = 0.25
#: An attempt that is further behind than this continues near the end of its output.
_MAX_LAG_BYTES = 8 * 1024**2
_TAIL_BYTES = 1024**2
#: After its end, an attempt's output is given up if it could not be sent within this time.
_GIVE_UP_S = 60.0
_CONCURRENT_CALLS = 8


class _Next(msgspec.Struct):
    next: int


_decode = msgspec.json.Decoder(_Next).decode


class LogShipment:
    """How far the output of one attempt has been sent."""

    def __init__(self) -> None:
        self.offset = 0
        self.total_bytes: int | None = None  #: once the attempt has ended
        self.is_given_up = False
        self.give_up_at: float | None = None

    @property
    def is_done(self) -> bool:
        is_sent = self.total_bytes is not None and self.offset >= self.total_bytes
        return self.is_given_up or is_sent


class LogShipper:
    def __init__(
        self,
        server: LeaderClient,
        state_dir: StateDir,
        worker: str,
        problems: AttemptProblems,
        on_done: Callable[[AttemptKey], None],
    ) -> None:
        """`on_done` is called when the whole output of an ended attempt was sent or given up."""
        self._server = server
        self._state_dir = state_dir
        self._worker = worker
        self._problems = problems
        self._on_done = on_done
        self._open: dict[AttemptKey, LogShipment] = {}
        self._has_ended = asyncio.Event()

    def watch(self, key: AttemptKey) -> None:
        """Send the output of a running attempt."""
        self._open.setdefault(key, LogShipment())

    def finish(self, key: AttemptKey, total_bytes: int) -> None:
        """Send the rest of the output of an attempt that has ended."""
        shipment = self._open.setdefault(key, LogShipment())
        shipment.total_bytes = total_bytes
        shipment.give_up_at = asyncio.get_running_loop().time() + _GIVE_UP_S
        self._has_ended.set()

    def drop(self, key: AttemptKey) -> None:
        """Remove an attempt that has ended without output."""
        self._open.pop(key, None)

    def is_open(self, key: AttemptKey) -> bool:
        """Whether output of the attempt may still be sent."""
        return key in self._open

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    await self._has_ended.wait()
            except TimeoutError:
                pass
            self._has_ended.clear()
            await self._ship_all()

    async def _ship_all(self) -> None:
        calls = asyncio.Semaphore(_CONCURRENT_CALLS)

        async def ship(key: AttemptKey, shipment: LogShipment) -> None:
            async with calls:
                with self._problems.contained(key, "send the logs"):
                    await self._ship(key, shipment)

        await asyncio.gather(*(ship(key, each) for key, each in list(self._open.items())))
        now = asyncio.get_running_loop().time()
        for key, shipment in list(self._open.items()):
            if shipment.give_up_at is not None and now > shipment.give_up_at:
                shipment.is_given_up = True
            if shipment.total_bytes is not None and shipment.is_done:
                del self._open[key]
                with self._problems.contained(key, "remove the files"):
                    self._on_done(key)

    async def _ship(self, key: AttemptKey, shipment: LogShipment) -> None:
        """Send one chunk of a running attempt, or all the rest of one that has ended."""
        while not shipment.is_done:
            data = next_chunk(shipment, self._state_dir, key)
            if not data:
                if shipment.total_bytes is not None:
                    shipment.offset = shipment.total_bytes  # the rest was lost
                return
            path = f"/workers/{quote(self._worker)}/output?task={quote(key[0])}&attempt={key[1]}"
            try:
                reply = await self._server.call(
                    "POST",
                    f"{path}&offset={shipment.offset}",
                    data,
                    media_type="application/octet-stream",
                )
            except Unreachable:
                return
            if reply.status not in (200, 201):
                shipment.is_given_up = True
                return
            shipment.offset = _decode(reply.body).next
            if shipment.total_bytes is None:
                return


def next_chunk(shipment: LogShipment, state_dir: StateDir, key: AttemptKey) -> bytes:
    """The next bytes to send; moves the shipment's offset past output that does not exist."""
    files = state_dir.output_files(key)
    if files and files[-1].end - shipment.offset > _MAX_LAG_BYTES:
        shipment.offset = files[-1].end - _TAIL_BYTES
    for file in files:
        if file.end > shipment.offset:
            shipment.offset = max(shipment.offset, file.offset)
            with suppress(FileNotFoundError, UnusableFile):
                return _read(state_dir, key, file, shipment.offset - file.offset)
    return b""


def _read(state_dir: StateDir, key: AttemptKey, file: OutputFile, offset: int) -> bytes:
    opened = state_dir.open_output(key, file)
    try:
        return opened.read(offset, _CHUNK_BYTES)
    finally:
        opened.close()
