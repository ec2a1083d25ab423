"""Just enough of an HTTP client: requests with a body, over connections that are kept.

A call that is cancelled leaves its connection busy until the answer has come; nobody reads it.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

_CONNECT_S = 5.0


class HttpRequest(NamedTuple):
    method: str
    path: str  #: with its query
    headers: Mapping[str, str]
    body: bytes
    seconds: float  #: how long the answer may take


class HttpReply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.is_fresh = True
        self.local = ""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpReply] | None = None
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.local = transport.get_extra_info("sockname")[0]
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail(ConnectionError(f"the server hung up: {exc or 'end of stream'}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"this is no HTTP: {error}"))
            self.close()

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        answer = HttpReply(self._parser.get_status_code(), self._headers, b"".join(self._body))
        if not self._parser.should_keep_alive():
            self.close()
        self._start()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def send(self, request: bytes) -> "asyncio.Future[HttpReply]":
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


class HttpClient:
    """One server, by its address."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._path = parts.path
        self._idle: list[_Connection] = []
        self.local = ""  #: the address from which it is reached

    async def call(self, request: HttpRequest) -> HttpReply:
        """Raises ConnectionError, also if the answer takes too long."""
        head = [
            f"{request.method} {self._path}{request.path} HTTP/1.1",
            f"Host: {self._netloc}",
            f"Content-Length: {len(request.body)}",
            *(f"{name}: {value}" for name, value in request.headers.items()),
        ]
        data = "\r\n".join([*head, "", ""]).encode() + request.body
        try:
            return await self._exchange(data, request.seconds)
        except TimeoutError:
            why = f"{self.url} did not answer within {request.seconds:.0f} s"
            raise ConnectionError(why) from None
        except OSError as error:
            raise ConnectionError(f"{self.url}: {error}") from None

    async def _exchange(self, request: bytes, seconds: float) -> HttpReply:
        while True:
            connection = await self._connection()
            was_fresh, connection.is_fresh = connection.is_fresh, False
            try:
                answer = self._freeing(connection, connection.send(request))
                async with asyncio.timeout(seconds):
                    # Cancelling a call must not cancel the answer, which frees the connection.
                    return await asyncio.shield(answer)
            except TimeoutError:
                connection.close()
                raise
            except ConnectionError:
                if was_fresh:
                    raise
                # The server may close what is idle at any time; that is no failure.

    def _freeing(
        self, connection: _Connection, answer: "asyncio.Future[HttpReply]"
    ) -> "asyncio.Future[HttpReply]":
        def free(done: "asyncio.Future[HttpReply]") -> None:
            if done.cancelled() or done.exception() is not None or not connection.is_open:
                connection.close()
            else:
                self._idle.append(connection)

        answer.add_done_callback(free)
        return answer

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        async with asyncio.timeout(_CONNECT_S):
            _, made = await asyncio.get_running_loop().create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        self.local = made.local
        return made

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
