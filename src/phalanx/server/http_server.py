"""uvicorn's server with our TLS context and limits on connections, and without signal handlers."""

import asyncio
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn
from litestar.types import ASGIApp

from phalanx.server.http_protocol import CoalescingProtocol
from phalanx.server.request_limits import Newcomers
from phalanx.server.tls_acceptor import TlsAcceptor

#: The most connections on which no request has been authenticated.
_NEWCOMERS = 1024
#: The files and connections that a server asks for.
_OPEN_FILES = 65_536
#: How long connections have after SIGTERM to receive their last response.
LINGER_S = 1
_KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=CoalescingProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # any local process could give itself another address
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=LINGER_S,
            )
        )
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn opens no socket itself, because it cannot limit handshakes."""
        await super().startup(sockets=[])
        limit = min(_NEWCOMERS, _allow_open_files() // 4)
        newcomers = Newcomers(limit)

        def protocol() -> asyncio.Protocol:
            return CoalescingProtocol(
                self.config, self.server_state, self.lifespan.state, newcomers=newcomers
            )

        loop = asyncio.get_running_loop()
        for each in sockets or []:
            if self._tls is None:
                server = await loop.create_server(protocol, sock=each, backlog=self.config.backlog)
                self.servers.append(server)
            else:
                acceptor = TlsAcceptor(each, self._tls, protocol, limit)
                acceptor.start(self.config.backlog)
                self.servers.append(cast("asyncio.Server", acceptor))


def _allow_open_files() -> int:
    """Raise the limit on open files as far as this process may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _OPEN_FILES if soft < 0 else soft
