"""How slowly a body may arrive, on a clock of the test's own."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
from tests.unit.test_http_protocol import Wire
from uvicorn.server import ServerState

from phalanx.server.request_limits import BYTES_PER_S, PATIENCE_S, LimitedProtocol

HEAD = b"POST /jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"


class ManualLoop:
    """An event loop with only a clock and timers, which the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(
        self, delay: float, callback: Callable[..., None], *given: Any
    ) -> asyncio.TimerHandle:
        due = self.now + delay
        timer = asyncio.TimerHandle(due, callback, given, self)  # type: ignore[arg-type]
        self._timers.append((due, id(timer), timer, lambda: callback(*given)))
        return timer

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        """Part of the interface of timers."""

    def get_debug(self) -> bool:
        return False

    def create_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        work.close()
        return asyncio.get_running_loop().create_future()

    def advance(self, seconds: float) -> None:
        """Let time pass; each timer runs when it is due."""
        end = self.now + seconds
        while self._timers and min(self._timers)[0] <= end:
            self.now = max(self.now, min(self._timers)[0])
            self._run_next()
        self.now = end

    def stall(self, seconds: float) -> None:
        """Let time pass without running anything, and then run the timer that is due next."""
        self.now += seconds
        self._run_next()

    def _run_next(self) -> None:
        _, _, timer, run = self._timers.pop(self._timers.index(min(self._timers)))
        if not timer.cancelled():
            run()


class Upload:
    """A request whose body arrives piece by piece."""

    def __init__(self) -> None:
        async def app(scope: object, receive: object, send: object) -> None:
            """Never runs."""

        self.loop = ManualLoop()
        self.wire = Wire()
        self.protocol = LimitedProtocol(
            config=uvicorn.Config(app, log_config=None, ws="none"),
            server_state=ServerState(),
            app_state={},
            _loop=self.loop,
        )
        self.protocol.connection_made(self.wire)
        self.send(HEAD)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)
        self.protocol.flow.read_paused = False  # as if the application had read it

    @property
    def is_refused(self) -> bool:
        for sent in self.wire.sent:
            head, _, body = sent.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            assert json.loads(body)["error"]["code"] == "timeout"
        return bool(self.wire.sent)


async def test_a_slow_upload_with_a_steady_pace_is_accepted() -> None:
    upload = Upload()
    for _ in range(200):
        upload.loop.advance(5)
        upload.send(b"x" * (BYTES_PER_S * 5))
    assert not upload.is_refused


async def test_an_upload_of_a_byte_now_and_then_is_refused() -> None:
    upload = Upload()
    for _ in range(10):
        upload.loop.advance(PATIENCE_S - 1)
        upload.send(b"x")
    assert upload.is_refused


async def test_an_upload_that_stops_is_refused() -> None:
    upload = Upload()
    upload.send(b"x" * 500_000)
    upload.loop.advance(PATIENCE_S)
    upload.loop.advance(PATIENCE_S)
    assert upload.is_refused


async def test_a_client_is_not_slow_while_the_server_stalls() -> None:
    upload = Upload()
    for _ in range(3):
        upload.loop.stall(PATIENCE_S + 60)
    upload.send(b"x" * 100)
    upload.loop.advance(PATIENCE_S)
    assert not upload.is_refused


async def test_a_client_is_not_slow_while_the_server_does_not_read() -> None:
    upload = Upload()
    upload.send(b"x" * 70_000)
    upload.protocol.flow.read_paused = True
    for _ in range(30):
        upload.loop.advance(PATIENCE_S)
    upload.send(b"x")
    upload.loop.advance(PATIENCE_S)
    assert not upload.is_refused
