"""A TCP proxy between the workers and one server, which loses and delays what they send.

It tells workers apart by their name in what they send, because all of them use one address.
"""

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from enum import Enum, auto

#: A request of an agent: a report, its output, or its registration.
_WORKER = re.compile(rb'/workers/(w-\d+)/(?:sync|output)|"id": ?"(w-\d+)"')
_DELAY_S = 0.7
_POLL_S = 0.05


class Weather(Enum):
    """What happens to the bytes of a worker."""

    CLEAR = auto()
    CUT = auto()  #: connections break and are refused
    MUTE = auto()  #: bytes are held back in both directions, and arrive when the fault is over
    DEAF = auto()  #: requests arrive, answers are held back
    SLOW = auto()


class NetworkProxy:
    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._weather: dict[str, Weather] = {}
        self._is_cut = False
        self._wires: set[_Wire] = set()
        self._listening: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        self._listening = await asyncio.start_server(self._connect, "127.0.0.1", port)

    def set(self, worker: str, weather: Weather) -> None:
        self._weather[worker] = weather
        if weather is Weather.CUT:
            self._abort(worker)

    def cut_off(self, *, is_cut: bool) -> None:
        """Cut the server off from every worker, or connect it again."""
        self._is_cut = is_cut
        if is_cut:
            self._abort(None)

    def _abort(self, worker: str | None) -> None:
        for wire in list(self._wires):
            if worker is None or wire.worker == worker:
                wire.abort()

    def weather(self, worker: str | None) -> Weather:
        if self._is_cut:
            return Weather.CUT
        return self._weather.get(worker or "", Weather.CLEAR)

    async def _connect(self, near: StreamReader, near_out: StreamWriter) -> None:
        try:
            far, far_out = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            near_out.transport.abort()
            return
        wire = _Wire(self, near_out, far_out)
        self._wires.add(wire)
        try:
            await asyncio.gather(
                wire.pump(near, far_out, is_request=True),
                wire.pump(far, near_out, is_request=False),
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            wire.abort()
            self._wires.discard(wire)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self._abort(None)


class _Wire:
    """One connection through the proxy."""

    def __init__(self, proxy: NetworkProxy, near: StreamWriter, far: StreamWriter) -> None:
        self.worker: str | None = None
        self._proxy = proxy
        self._ends = (near, far)

    def abort(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def pump(self, source: StreamReader, target: StreamWriter, *, is_request: bool) -> None:
        while chunk := await source.read(65536):
            if is_request and (name := _WORKER.search(chunk[:4096])) is not None:
                self.worker = (name[1] or name[2]).decode()
            await self._pass(is_request=is_request)
            target.write(chunk)
            await target.drain()
        with suppress(OSError):
            target.write_eof()

    async def _pass(self, *, is_request: bool) -> None:
        """Wait until the weather lets bytes of this direction pass. Raises ConnectionError."""
        if self._proxy.weather(self.worker) is Weather.SLOW:
            await asyncio.sleep(_DELAY_S)
        while True:
            weather = self._proxy.weather(self.worker)
            if weather is Weather.CUT:
                raise ConnectionError
            if weather is not Weather.MUTE and (weather is not Weather.DEAF or is_request):
                return
            await asyncio.sleep(_POLL_S)
