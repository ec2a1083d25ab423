"""How requests reach an API server: directly, or through a proxy."""

import ssl
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from phalanx.kube.connection.cluster_connection import ClusterConnection, tls_context
from phalanx.kube.connection.credentials import FILE_LIFE_S, Credential
from phalanx.kube.connection.errors import ConnectionConfigError

#: A connection that was idle for longer is not used again: firewalls forget idle connections.
IDLE_S = 60.0

OnData = Callable[[bytes], None]


class WireRequest(NamedTuple):
    method: str
    target: str  #: path and query, encoded
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"


class WireAnswer(NamedTuple):
    status: int
    body: bytes
    retry_after: str = ""  #: the header of this name


class ApiTransport(Protocol):
    """Exchanges HTTP messages with one server, from one event loop. Every call raises OSError or
    TimeoutError if there is no answer."""

    async def exchange(
        self, request: WireRequest, credential: Credential, timeout_s: float
    ) -> WireAnswer:
        """Send a request, and return the whole answer."""

    async def stream(
        self, request: WireRequest, credential: Credential, on_data: OnData, silence_s: float
    ) -> WireAnswer:
        """Hand over the body of an answer below 400 as it arrives, and return when it has ended.
        `silence_s` is the longest time without data. An exception of `on_data` ends the stream."""

    async def close(self) -> None:
        """Close all connections."""


class ClientHeaders:
    """The headers that all requests with one credential share."""

    def __init__(self, connection: ClusterConnection, user_agent: str) -> None:
        self._connection = connection
        self._user_agent = user_agent

    def of(self, credential: Credential) -> list[tuple[str, str]]:
        """Names and values; an impersonation may repeat a name. Raises ConnectionConfigError."""
        # Lists of thousands of objects are faster to read than to unpack.
        headers = [
            ("Accept-Encoding", "identity"),
            ("User-Agent", self._user_agent),
            *self._connection.impersonation,
        ]
        if credential.authorization:
            headers.append(("Authorization", credential.authorization))
        for name, value in headers:
            if "\n" in value or "\r" in value:
                raise ConnectionConfigError(f"the value of {name} has a line break")
        return headers


class TlsContexts:
    """The TLS context of the present credential. A replaced authority or certificate gives a new
    context, and with it new connections."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._made_for: tuple[bytes, bytes, bytes] | None = None
        self._context: ssl.SSLContext | None = None
        self._read_at = 0.0

    def context(self, credential: Credential) -> ssl.SSLContext | None:
        """The context for a new connection; None without TLS."""
        if not self._connection.server.startswith("https:"):
            return None
        client = (credential.certificate, credential.key)
        is_fresh = time.monotonic() - self._read_at < FILE_LIFE_S
        if self._made_for is not None and self._made_for[:2] == client and is_fresh:
            return self._context
        wanted = (*client, self._connection.authority.read())
        if wanted != self._made_for:
            self._context = tls_context(self._connection, credential)
            self._made_for = wanted
        self._read_at = time.monotonic()
        return self._context
