"""uvicorn's HTTP protocol, with each response sent in one piece and errors in our form.

uvicorn writes the head of a response and then its body. Sent separately they cost two system calls
here, and wake the receiver twice.
"""

import asyncio
import ssl
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from phalanx.api.certificates import CLIENT_CERTIFICATE
from phalanx.wire.errors import ErrorBody, ErrorInfo

_NOT_HTTP = msgspec.json.encode(
    ErrorBody(
        ErrorInfo(
            "invalid",
            "the request is not valid HTTP/1.1; a server without TLS needs a URL with http://",
        )
    )
)


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


class CoalescingProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(
            cast("asyncio.Transport", _CoalescingTransport(transport, self.loop))
        )
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if certificate is not None:
            # In the state of every request of the connection.
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: certificate}

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            # This is no proxy: a host in the target would contradict the Host header.
            raise ValueError("the request target is not a path")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP; the library's message is not passed on."""
        head = (
            b"HTTP/1.1 400 Bad Request\r\n"
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n"
            b"connection: close\r\n\r\n" % len(_NOT_HTTP)
        )
        self.transport.write(head + _NOT_HTTP)
        self.transport.close()
