"""Accepts TLS connections: limits the handshakes in progress, and answers plain HTTP with a hint.

Until its handshake is complete, a connection has no protocol whose limits could apply to it.
"""

import asyncio
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable

from phalanx.server.request_limits import PATIENCE_S, error_response
from phalanx.wire.errors import ErrorInfo

#: The first byte of every TLS handshake.
_HANDSHAKE = b"\x16"
_PLAIN_HTTP = error_response(
    400, ErrorInfo("invalid", "this port uses TLS; write https:// instead of http://")
)
#: How many connections are accepted before other work gets a turn.
_AT_ONCE = 64
#: How long to wait when the process has no free file descriptor.
_EXHAUSTED_S = 0.1
#: How long a client may take to read a refusal, and to answer the end of a TLS connection.
_FAREWELL_S = 1.0


class TlsAcceptor:
    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        limit: int,
    ) -> None:
        """Beyond `limit` handshakes in progress, the oldest is aborted."""
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._handshakes: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self._is_closed = False

    def start(self, backlog: int) -> None:
        self._listener.listen(backlog)
        self._resume()

    def close(self) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_EXHAUSTED_S, self._resume)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._receive(connection))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            if len(self._handshakes) > self._limit:
                oldest, _ = self._handshakes.popitem(last=False)
                oldest.cancel()

    async def _receive(self, connection: socket.socket) -> None:
        """Do the handshake, or refuse what is not one."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                first = await self._first_byte(connection)
                if first == _HANDSHAKE:
                    await self._loop.connect_accepted_socket(
                        self._protocol,
                        connection,
                        ssl=self._context,
                        ssl_handshake_timeout=PATIENCE_S,
                        ssl_shutdown_timeout=_FAREWELL_S,
                    )
                    return
                if first:
                    await self._refuse(connection)
        except (OSError, TimeoutError):
            pass  # the client has gone, is too slow, or its certificate was refused
        except BaseException:
            connection.close()
            raise
        connection.close()

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """The first byte, which stays in the socket; b"" if the client has gone."""
        readable = self._loop.create_future()
        self._loop.add_reader(connection, _set, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)

    async def _refuse(self, connection: socket.socket) -> None:
        await self._loop.sock_sendall(connection, _PLAIN_HTTP)
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_FAREWELL_S):
            while await self._loop.sock_recv(connection, 65536):
                pass


def _set(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)
