"""uvicorn's HTTP protocol, with limits and with each response sent in one piece.

uvicorn writes the head of a response and then its body. Sent separately they cost two system calls
here, and wake the receiver twice.
"""

import asyncio
import ssl
from typing import Any, cast

from phalanx.api.certificates import CLIENT_CERTIFICATE
from phalanx.server.request_limits import LimitedProtocol


class _CoalescingTransport:
    """A transport that collects writes until the next iteration of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held and not self._transport.is_closing():
            self._transport.write(b"".join(self._held))
        self._held.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class CoalescingProtocol(LimitedProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(
            cast("asyncio.Transport", _CoalescingTransport(transport, self.loop))
        )
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if certificate is not None:
            # In the state of every request of the connection.
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: certificate}
