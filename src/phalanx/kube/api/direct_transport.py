"""Requests on connections of their own. A scheduler sends thousands of small ones, so a request
costs one write and one read, and everything that requests share is encoded once."""

import asyncio
import os
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

from phalanx.kube.api.transport import (
    IDLE_S,
    ClientHeaders,
    OnData,
    TlsContexts,
    WireAnswer,
    WireRequest,
)
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import Credential

_CONNECT_S = 10.0


class DirectTransport:
    def __init__(self, connection: ClusterConnection, user_agent: str) -> None:
        parts = urlsplit(connection.server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path
        self._server_name = connection.tls_server_name
        self._first_header = f"Host: {parts.netloc.rpartition('@')[2]}\r\n"
        self._headers = ClientHeaders(connection, user_agent)
        self._tls = TlsContexts(connection)
        self._encoded: tuple[Credential, bytes] | None = None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def exchange(
        self, request: WireRequest, credential: Credential, timeout_s: float
    ) -> WireAnswer:
        message = self._message(request, credential)
        async with asyncio.timeout(timeout_s):
            while True:
                connection = await self._connection(credential)
                try:
                    answer = await connection.exchange(message)
                except ConnectionError:
                    # The server may have closed a connection in the moment of its use. What
                    # changes nothing is sent again; all else may have had its effect.
                    if request.method == "GET" and connection.is_used:
                        continue
                    raise
                connection.is_used = True
                self._release(connection)
                return answer

    async def stream(
        self, request: WireRequest, credential: Credential, on_data: OnData, silence_s: float
    ) -> WireAnswer:
        connection = await self._connect(credential)
        try:
            return await connection.stream(self._message(request, credential), on_data, silence_s)
        finally:
            connection.close()

    async def close(self) -> None:
        for connection in [*self._open]:
            connection.close()
        # The transports end in the next turn of the event loop.
        await asyncio.sleep(0)

    def _message(self, request: WireRequest, credential: Credential) -> bytes:
        shared = self._encoded
        if shared is None or shared[0] is not credential:
            lines = (f"{name}: {value}\r\n" for name, value in self._headers.of(credential))
            shared = self._encoded = (credential, "".join(lines).encode())
        first = (
            f"{request.method} {self._path}{request.target} HTTP/1.1\r\n"
            f"{self._first_header}Accept: {request.accept}\r\n"
        )
        body = request.body
        if body is None:
            return b"%b%b\r\n" % (first.encode(), shared[1])
        last = f"Content-Type: {request.content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        return b"%b%b%b%b" % (first.encode(), shared[1], last.encode(), body)

    async def _connection(self, credential: Credential) -> "_Connection":
        """An idle connection, or a new one."""
        oldest = time.monotonic() - IDLE_S
        context = self._tls.context(credential)
        while self._idle:
            connection = self._idle.pop()
            is_current = connection.context is context and connection.idle_since >= oldest
            if connection.is_open and is_current:
                return connection
            connection.close()
        return await self._connect(credential)

    def _release(self, connection: "_Connection") -> None:
        if connection.is_open:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)

    async def _connect(self, credential: Credential) -> "_Connection":
        context = self._tls.context(credential)
        name = (self._server_name or self._host) if context is not None else None
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(context, self._open),
                    self._host,
                    self._port,
                    ssl=context,
                    server_hostname=name,
                )
        except (ssl.SSLError, TimeoutError):
            raise
        except OSError as error:
            code = error.errno or 0
            reason = os.strerror(code) if code > 0 else error.strerror or str(error)
            raise ConnectionError(f"cannot connect: {reason}") from error
        return connection


class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self, context: ssl.SSLContext | None, all_open: "set[_Connection]") -> None:
        self.context = context
        self.is_open = False
        self.is_used = False  #: it has carried a request before
        self.idle_since = 0.0
        self._all_open = all_open
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[WireAnswer] | None = None
        self._on_data: OnData | None = None
        self._heard_at = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._retry_after = ""
        self._is_complete = False
        self._is_last = False  #: the server closes the connection after this answer

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._all_open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._all_open.discard(self)
        self._fail(ConnectionError(f"the connection was closed: {exc or 'end of stream'}"))

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            self._parser.feed_data(data)
            if self._on_data is not None and self._body and self._parser.get_status_code() < 400:
                body, self._body = self._body, []
                self._on_data(b"".join(body))
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the answer is not HTTP: {error}"))
            self.close()
        except Exception as error:  # whatever `on_data` raises ends the stream
            self._fail(error)
            self.close()
        else:
            if self._is_complete:
                self._complete()

    def _complete(self) -> None:
        answer = WireAnswer(self._parser.get_status_code(), b"".join(self._body), self._retry_after)
        self._is_complete, self._body, self._retry_after = False, [], ""
        if self._is_last:
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._is_last = not self._parser.should_keep_alive()

    # Called by the transport above

    async def exchange(self, message: bytes) -> WireAnswer:
        """Send a request, and return its answer. Cancelling it closes the connection."""
        answer = self._send(message)
        try:
            return await answer
        except BaseException:
            self.close()
            raise

    async def stream(self, message: bytes, on_data: OnData, silence_s: float) -> WireAnswer:
        self._on_data = on_data
        answer = self._send(message)
        self._heard_at = time.monotonic()
        try:
            while not answer.done():
                left_s = self._heard_at + silence_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                await asyncio.wait([answer], timeout=left_s)
            return answer.result()
        finally:
            answer.cancel()

    def _send(self, message: bytes) -> "asyncio.Future[WireAnswer]":
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._answer

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        self.is_open = False
        self._all_open.discard(self)
        if self._transport is not None:
            # Without waiting for the other side's end of TLS.
            self._transport.abort()
