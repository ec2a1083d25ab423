"""A minimal HTTP/1.1 client: one request at a time on each connection, connections are reused.

A cancelled call leaves its connection busy until the reply has arrived, which is then discarded.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from phalanx.tls.problems import tls_problem

_CONNECT_S = 5.0
_CHUNK_BYTES = 64 * 1024


class BodyUnreadable(Exception):  # noqa: N818
    """The file that is sent has become shorter, or its disk fails."""


class FileBody(NamedTuple):
    """A body that is read while it is sent, so that its size does not matter."""

    read: Callable[[int, int], bytes]  #: reads at an offset at most so many bytes
    size_bytes: int

    def chunk(self, offset: int) -> bytes:
        """The next bytes to send. Raises BodyUnreadable."""
        try:
            data = self.read(offset, min(_CHUNK_BYTES, self.size_bytes - offset))
        except OSError as error:
            raise BodyUnreadable(error.strerror) from None
        if not data:
            raise BodyUnreadable("it has become shorter")
        return data


class HttpRequest(NamedTuple):
    method: str
    path: str  #: with its query
    headers: Mapping[str, str]
    body: bytes | FileBody
    timeout_s: float

    @property
    def body_bytes(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body.size_bytes


class HttpReply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    def __init__(self, on_idle: Callable[["_Connection"], None]) -> None:
        """`on_idle` is called when a reply has arrived, also if its call was cancelled."""
        self._on_idle = on_idle
        self.is_open = False
        self.is_fresh = True
        self.is_sending = False  #: a part of the request has not been sent
        self.generation = 0
        self.local_address = ""
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[HttpReply] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._expect_reply()

    def _expect_reply(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.local_address = transport.get_extra_info("sockname")[0]
        self.is_open = True

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._can_write.set()
        why = tls_problem(exc) if exc is not None else None
        self._fail(
            ConnectionError(f"the server closed the connection: {why or exc or 'end of stream'}")
        )

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the reply is not HTTP: {error}"))
            self.close()

    def _fail(self, error: ConnectionError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        reply = HttpReply(self._parser.get_status_code(), self._headers, b"".join(self._body))
        is_reusable = self._parser.should_keep_alive() and not self.is_sending
        self._expect_reply()
        if is_reusable:
            self._on_idle(self)
        else:
            self.close()
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def send(self, request: bytes) -> "asyncio.Future[HttpReply]":
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection is closed")
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._reply

    async def send_file(self, body: FileBody, reply: "asyncio.Future[HttpReply]") -> None:
        """Send a body after its head, until the reply arrives. Raises BodyUnreadable."""
        sent = 0
        while sent < body.size_bytes and not reply.done():
            data = body.chunk(sent)
            if self._transport is not None:
                self._transport.write(data)
            sent += len(data)
            await self._can_write.wait()
        self.is_sending = sent < body.size_bytes

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


async def _within(timeout_s: float, reply: "asyncio.Future[HttpReply]") -> HttpReply:
    """The reply. Raises TimeoutError. For a future this is cheaper than a timeout around it."""
    timer = asyncio.get_running_loop().call_later(timeout_s, _expire, reply)
    try:
        return await reply
    finally:
        timer.cancel()


def _expire(reply: "asyncio.Future[HttpReply]") -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


class HttpClient:
    """A client for one server."""

    def __init__(self, url: str, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """`tls` returns the context of the next https connection."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        self._host = parts.hostname or ""
        self._tls = (tls or ssl.create_default_context) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._path = parts.path
        self._idle: list[_Connection] = []
        self._generation = 0
        self.local_address = ""  #: the address of this machine on the latest connection

    async def call(self, request: HttpRequest) -> HttpReply:
        """Raises ConnectionError, also if the reply takes too long."""
        head = [
            f"{request.method} {self._path}{request.path} HTTP/1.1",
            f"Host: {self._netloc}",
            f"Content-Length: {request.body_bytes}",
            *(f"{name}: {value}" for name, value in request.headers.items()),
        ]
        data = "\r\n".join([*head, "", ""]).encode()
        try:
            if isinstance(request.body, bytes):
                return await self._exchange(data + request.body, None, request.timeout_s)
            return await self._exchange(data, request.body, request.timeout_s)
        except TimeoutError:
            why = f"{self.url} did not answer within {request.timeout_s:.0f} s"
            raise ConnectionError(why) from None
        except OSError as error:
            raise ConnectionError(f"{self.url}: {tls_problem(error) or error}") from None

    async def _exchange(self, request: bytes, body: FileBody | None, timeout_s: float) -> HttpReply:
        """Send a request, with the rest of its body if there is one, and return the reply."""
        while True:
            connection = await self._connection()
            was_fresh, connection.is_fresh = connection.is_fresh, False
            try:
                connection.is_sending = body is not None
                reply = connection.send(request)
                if body is None:
                    return await _within(timeout_s, reply)
                async with asyncio.timeout(timeout_s):
                    await connection.send_file(body, reply)
                    return await reply
            except TimeoutError:
                connection.close()
                raise
            except (BodyUnreadable, asyncio.CancelledError):
                if connection.is_sending:
                    connection.close()
                raise
            except ConnectionError:
                if was_fresh:
                    raise
                # A server may close an idle connection at any time: try another connection.

    def _reuse(self, connection: _Connection) -> None:
        if connection.generation == self._generation:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        generation = self._generation
        async with asyncio.timeout(_CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._reuse),
                self._host,
                self._port,
                ssl=self._tls and self._tls(),
            )
        connection.generation = generation
        self.local_address = connection.local_address
        return connection

    def close(self) -> None:
        """Close the idle connections now, and the others when their reply has arrived."""
        self._generation += 1
        while self._idle:
            self._idle.pop().close()
