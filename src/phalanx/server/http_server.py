"""uvicorn's server with our TLS context, and without its signal handlers."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from phalanx.server.http_protocol import CoalescingProtocol

#: How long a client may take for the TLS handshake.
_HANDSHAKE_S = 10.0


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

        def protocol() -> asyncio.Protocol:
            return CoalescingProtocol(self.config, self.server_state, self.lifespan.state)

        loop = asyncio.get_running_loop()
        self.servers += [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_S,
                backlog=self.config.backlog,
            )
            for each in sockets or []
        ]
