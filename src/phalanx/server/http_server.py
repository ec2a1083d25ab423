"""uvicorn's server with our TLS context and limits on connections, and without signal handlers."""

import asyncio
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from phalanx.server.http_protocol import CoalescingProtocol
from phalanx.server.request_limits import PATIENCE_S, Newcomers

#: The most connections on which no request has been authenticated.
_NEWCOMERS = 1024
#: The files and connections that a server asks for.
_OPEN_FILES = 65_536


class HttpServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn opens no socket itself, because it cannot limit a handshake."""
        await super().startup(sockets=[])
        newcomers = Newcomers(min(_NEWCOMERS, _allow_open_files() // 4))

        def protocol() -> asyncio.Protocol:
            return CoalescingProtocol(
                self.config, self.server_state, self.lifespan.state, newcomers=newcomers
            )

        loop = asyncio.get_running_loop()
        self.servers += [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else PATIENCE_S,
                backlog=self.config.backlog,
            )
            for each in sockets or []
        ]


def _allow_open_files() -> int:
    """Raise the limit on open files as far as this process may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _OPEN_FILES if soft < 0 else soft
