"""How slowly a body may arrive, on a clock of the test's own."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from tests.unit.test_http_protocol import Wire
from uvicorn.server import ServerState

from phalanx.server.request_limits import BYTES_PER_S, PATIENCE_S, LimitedProtocol

HEAD = b"POST /jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
CHUNKED = b"POST /jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


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

    def __init__(self, head: bytes = HEAD) -> None:
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
        self.send(head)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)
        self.protocol.flow.read_paused = False  # as if the application had read it

    @property
    def is_refused(self) -> bool:
        return self.refusal == (408, "timeout")

    @property
    def refusal(self) -> tuple[int, str] | None:
        if not self.wire.sent:
            return None
        head, _, body = self.wire.sent[0].partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)["error"]["code"]


async def test_a_slow_upload_with_a_steady_pace_is_accepted() -> None:
    upload = Upload()
    for _ in range(200):
        upload.loop.advance(5)
        upload.send(b"x" * (BYTES_PER_S * 5))
    assert upload.refusal is None


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
    assert upload.refusal is None


async def test_a_client_is_not_slow_while_the_server_does_not_read() -> None:
    upload = Upload()
    upload.send(b"x" * 70_000)
    upload.protocol.flow.read_paused = True
    for _ in range(30):
        upload.loop.advance(PATIENCE_S)
    upload.send(b"x")
    upload.loop.advance(PATIENCE_S)
    assert upload.refusal is None


#: Parts of a chunked body besides its data: how they begin, and the piece that is repeated.
ENDLESS = {
    "zeros of a chunk size": (b"", b"0"),
    "a chunk extension": (b"1;a=", b"x"),
    "a trailer": (b"0\r\nX-Sum: ", b"x"),
    "trailers": (b"0\r\n", b"a: b\r\n"),
}
FRAMING = ENDLESS | {
    "chunk sizes": (b"", b"1\r\nx\r\n"),
    "chunk extensions": (b"", b"1;a=b\r\nx\r\n"),
}


@pytest.mark.parametrize("kind", FRAMING)
async def test_the_framing_of_a_chunked_body_cannot_go_on_slowly(kind: str) -> None:
    begin, piece = FRAMING[kind]
    upload = Upload(CHUNKED + b"%x\r\n%s\r\n" % (60_000, b"x" * 60_000))
    upload.send(begin)
    for _ in range(30):
        upload.loop.advance(PATIENCE_S - 1)
        upload.send(piece)
    assert upload.is_refused


@pytest.mark.parametrize("kind", ENDLESS)
async def test_the_framing_of_a_chunked_body_is_bounded_however_large_the_body_is(
    kind: str,
) -> None:
    begin, piece = ENDLESS[kind]
    upload = Upload(CHUNKED + b"%x\r\n" % 10_000_000)
    for _ in range(10):
        upload.send(b"x" * 1_000_000)
    upload.send(b"\r\n" + begin)
    upload.send(piece * (400_000 // len(piece)))
    assert upload.refusal == (400, "invalid")
    assert len(upload.protocol.headers) == 2, "trailers are not kept"


async def test_a_chunked_upload_with_a_steady_pace_is_accepted() -> None:
    upload = Upload(CHUNKED)
    for _ in range(200):
        upload.loop.advance(5)
        upload.send(b"%x;a=b\r\n%s\r\n" % (BYTES_PER_S * 5, b"x" * (BYTES_PER_S * 5)))
    upload.send(b"0\r\nX-Sum: 1\r\n\r\n")
    upload.loop.advance(PATIENCE_S * 3)
    assert upload.refusal is None
