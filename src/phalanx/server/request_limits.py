"""Limits on what a client can make a server hold before it has authenticated: size and time of
request heads, the pace of bodies, and the number of connections.

The parser has no limits of its own. A request that arrives in one piece costs no timer here.
"""

import asyncio
import http
from collections import OrderedDict
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from phalanx.wire.errors import ErrorBody, ErrorInfo

#: The largest request line with all headers.
HEAD_BYTES = 32 * 1024
HEADER_COUNT = 128
#: How long a client may take to send a head, and to send the next piece of a body.
PATIENCE_S = 10.0
#: The least average pace of a body, after the first `PATIENCE_S`.
BYTES_PER_S = 500
#: Chunk sizes, chunk extensions and trailers may have as many bytes as the body, and this many; and
#: no more than this many in a row.
_FRAMING_BYTES = 64 * 1024
#: The most requests that are sent before the first of them is answered.
_PIPELINED = 16
#: How long a refused client may take to read the refusal; closing at once could discard it.
_FAREWELL_S = 1.0
_DISCARDED_BYTES = 1024 * 1024  #: that a refused client may still send meanwhile
#: A timer that is this late was held up by the server itself, and the client's bytes with it.
_LATE_S = 1.0

#: The part of a request that the next byte belongs to.
_NONE, _HEAD, _BODY = range(3)


class Newcomers:
    """The connections on which no request has been authenticated, oldest first.

    Beyond the limit the oldest is closed: an honest client sends its token at once, so it is never
    the oldest for long, however many other clients connect.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._connections: OrderedDict[LimitedProtocol, None] = OrderedDict()

    def add(self, connection: "LimitedProtocol") -> None:
        self._connections[connection] = None
        while len(self._connections) > self._limit:
            oldest, _ = self._connections.popitem(last=False)
            if not oldest.is_authenticated:
                oldest.transport.abort()

    def discard(self, connection: "LimitedProtocol") -> None:
        self._connections.pop(connection, None)


class LimitedProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, newcomers: Newcomers | None = None, **given: Any) -> None:
        super().__init__(*args, **given)
        self._newcomers = newcomers
        self._part = _NONE
        self._is_refused = False
        self._discarded_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  #: of a head that did not arrive in one piece
        self._body_bytes = 0
        self._framed_bytes = 0  #: of the body as it was sent
        self._framing_run_bytes = 0  #: that arrived since the last piece with data
        self._body_began_at = 0.0
        self._body_bytes_before = 0  #: when the timer was started

    @property
    def is_authenticated(self) -> bool:
        """Whether the latest request has a principal."""
        latest: RequestResponseCycle | None = self.cycle
        return latest is not None and "principal" in latest.scope["state"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        if self._newcomers is not None:
            self._newcomers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._newcomers is not None:
            self._newcomers.discard(self)
        self._stop_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if len(data) <= HEAD_BYTES:
            self._feed(data)
            return
        pieces = memoryview(data)
        for start in range(0, len(data), HEAD_BYTES):
            self._feed(pieces[start : start + HEAD_BYTES])

    def _feed(self, data: bytes | memoryview) -> None:
        """Parse at most as many bytes as a head may have."""
        if self._is_refused:
            # Bytes that are not read when the connection is closed would discard the refusal.
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _DISCARDED_BYTES:
                self.flow.pause_reading()
            return
        before, body_bytes_before = self._part, self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as if the client had not asked to change the protocol
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        if self._part == _NONE:
            return
        if self._timer is None:
            self._body_began_at = self.loop.time()
            self._start_timer()
        if self._part == _HEAD:
            if before != _BODY:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES:
                    self._refuse_head()
        elif before == _BODY:
            has_data = self._body_bytes > body_bytes_before
            self._count_framing(len(data), has_data=has_data)

    def _count_framing(self, size_bytes: int, *, has_data: bool) -> None:
        """Count a piece of the body, and refuse a body with too much besides its data."""
        self._framed_bytes += size_bytes
        self._framing_run_bytes = 0 if has_data else self._framing_run_bytes + size_bytes
        framing_bytes = self._framed_bytes - self._body_bytes
        if max(framing_bytes - self._body_bytes, self._framing_run_bytes) > _FRAMING_BYTES:
            message = "the body has too many chunk sizes, extensions or trailers; send it whole"
            self.refuse(400, "invalid", message)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self._part = _HEAD
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > HEADER_COUNT or (self._head_bytes and self._has_large_head()):
            self._refuse_head()
            raise ValueError("the head is too large")
        if not self.url.startswith(b"/"):
            # This is no proxy: a host in the target would contradict the Host header.
            self.refuse(400, "invalid", "the request target is not a path; write it like /jobs")
            raise ValueError("the request target is not a path")
        if len(self.pipeline) >= _PIPELINED:
            self._is_refused = True
            self.transport.close()
            raise ValueError("too many requests are waiting for their response")
        if self._timer is not None:
            self._stop_timer()
        self._part = _BODY
        self._body_bytes = self._framed_bytes = self._framing_run_bytes = 0
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part != _BODY:  # a trailer is ignored
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._timer is not None:
            self._stop_timer()
        self._part = _NONE
        super().on_message_complete()

    def _has_large_head(self) -> bool:
        size = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return len(self.url) + size > HEAD_BYTES

    # Time

    def _start_timer(self) -> None:
        self._body_bytes_before = self._body_bytes
        due = self.loop.time() + PATIENCE_S
        self._timer = self.loop.call_later(PATIENCE_S, self._on_timer, due)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, due: float) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        now, is_body = self.loop.time(), self._part == _BODY
        is_waiting = self.flow.read_paused or (is_body and self.cycle.waiting_for_100_continue)
        if is_waiting or now - due > _LATE_S:
            # The client could not send: this time does not count.
            self._body_began_at += PATIENCE_S + now - due
            self._start_timer()
        elif self._part == _HEAD:
            message = f"the request head was not complete after {PATIENCE_S:g} s; send it at once"
            self.refuse(408, "timeout", message)
        elif not is_body or self.cycle.response_complete:
            self.transport.close()  # without a request, or with a body that is not read
        elif self._has_pace(now):
            self._start_timer()
        else:
            self.refuse(408, "timeout", "the body arrived too slowly; send it again, faster")

    def _has_pace(self, now: float) -> bool:
        expected = BYTES_PER_S * (now - self._body_began_at - PATIENCE_S)
        return self._body_bytes > self._body_bytes_before and self._body_bytes >= expected

    # Refusals

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP; the library's message is not passed on."""
        self.refuse(
            400,
            "invalid",
            "the request is not valid HTTP/1.1; a server without TLS needs a URL with http://",
        )

    def _refuse_head(self) -> None:
        self.refuse(
            431,
            "head_too_large",
            f"the request line and headers have more than {HEAD_BYTES} bytes or {HEADER_COUNT}"
            " headers; send less",
        )

    def refuse(self, status: int, code: str, message: str) -> None:
        """Answer with an error and close, unless the response to an earlier request has begun."""
        if self._is_refused:
            return
        self._is_refused = True
        self._stop_timer()
        latest: RequestResponseCycle | None = self.cycle
        unanswered = None if latest is None or latest.response_complete else latest
        is_own = self._part == _BODY and not self.pipeline
        if unanswered is None or (is_own and not unanswered.response_started):
            self.transport.write(error_response(status, ErrorInfo(code, message)))
            self.loop.call_later(_FAREWELL_S, self.transport.close)
        else:
            self.transport.close()
        if unanswered is not None:
            unanswered.disconnected = True
            unanswered.message_event.set()


def error_response(status: int, error: ErrorInfo) -> bytes:
    """A whole response, after which the connection is closed."""
    body = msgspec.json.encode(ErrorBody(error))
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
