"""Output on its way to the server: a bounded stream, the newest first where there is too much.

Whether it arrives decides nothing: exits are reported without it, and what the server refuses or
cannot take in time stays behind.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from phalanx.agent.link.leader_client import LeaderClient, Unreachable
from phalanx.agent.messages import Key
from phalanx.agent.state_dir import Segment, StateDir

_CHUNK_BYTES = 256 * 1024
#: With the chunk this is the rate of one task.
_TICK_S = 0.25
#: Whoever is further behind goes on near the end.
_BEHIND_BYTES = 8 * 1024**2
_TAIL_BYTES = 1024**2
#: The last bytes of a task are given up when the server could not be reached for so long.
_PATIENCE_S = 60.0
_TOGETHER = 8


class _Next(msgspec.Struct):
    next: int


_decode = msgspec.json.Decoder(_Next).decode


class Shipment:
    """What is on its way of one attempt."""

    def __init__(self) -> None:
        self.offset = 0
        self.total_bytes: int | None = None  #: once it is over
        self.is_refused = False
        self.give_up_at: float | None = None

    @property
    def is_done(self) -> bool:
        return self.is_refused or (self.total_bytes is not None and self.offset >= self.total_bytes)


class Shipper:
    def __init__(
        self, servers: LeaderClient, places: StateDir, worker: str, done: Callable[[Key], None]
    ) -> None:
        self._servers = servers
        self._places = places
        self._worker = worker
        self._done = done
        self._open: dict[Key, Shipment] = {}
        self._hurry = asyncio.Event()

    def watch(self, key: Key) -> None:
        self._open.setdefault(key, Shipment())

    def finish(self, key: Key, total_bytes: int) -> None:
        """It will write no more."""
        shipment = self._open.setdefault(key, Shipment())
        shipment.total_bytes = total_bytes
        shipment.give_up_at = asyncio.get_running_loop().time() + _PATIENCE_S
        self._hurry.set()

    def drop(self, key: Key) -> None:
        """It wrote nothing."""
        self._open.pop(key, None)

    def is_open(self, key: Key) -> bool:
        return key in self._open

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            await self._ship_all()

    async def _ship_all(self) -> None:
        turn = asyncio.Semaphore(_TOGETHER)

        there = self._places.outputs() if self._open else {}

        async def ship(key: Key, shipment: Shipment) -> None:
            async with turn:
                await self._ship(key, shipment, there.get(key, []))

        await asyncio.gather(*(ship(key, each) for key, each in list(self._open.items())))
        now = asyncio.get_running_loop().time()
        for key, shipment in list(self._open.items()):
            if shipment.give_up_at is not None and now > shipment.give_up_at:
                shipment.is_refused = True
            if shipment.total_bytes is not None and shipment.is_done:
                del self._open[key]
                self._done(key)

    async def _ship(self, key: Key, shipment: Shipment, segments: list[Segment]) -> None:
        while not shipment.is_done:
            data = next_bytes(shipment, segments)
            if not data:
                if shipment.total_bytes is not None:
                    shipment.offset = shipment.total_bytes  # the rest was lost
                return
            path = f"/workers/{quote(self._worker)}/output?task={quote(key[0])}&epoch={key[1]}"
            try:
                answer = await self._servers.call(
                    "POST",
                    f"{path}&offset={shipment.offset}",
                    data,
                    media="application/octet-stream",
                )
            except Unreachable:
                return
            if answer.status not in (200, 201):
                shipment.is_refused = True
                return
            shipment.offset = _decode(answer.body).next
            if shipment.total_bytes is None:
                return  # the rest has to wait for its next turn


def next_bytes(shipment: Shipment, segments: list[Segment]) -> bytes:
    """The bytes from the offset on, which is moved to where there are some."""
    ends = []
    for segment in segments:
        try:
            ends.append(segment.base + segment.path.stat().st_size)
        except FileNotFoundError:
            ends.append(segment.base)
    if not ends:
        return b""
    if ends[-1] - shipment.offset > _BEHIND_BYTES:
        shipment.offset = ends[-1] - _TAIL_BYTES
    for segment, end in zip(segments, ends, strict=True):
        if end > shipment.offset:
            shipment.offset = max(shipment.offset, segment.base)
            try:
                with segment.path.open("rb") as file:
                    file.seek(shipment.offset - segment.base)
                    return file.read(_CHUNK_BYTES)
            except FileNotFoundError:
                continue
    return b""
