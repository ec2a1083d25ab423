"""The server's socket and its addresses, and whether they are reachable from other hosts."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from phalanx.server.config import Config
from phalanx.server.options import TlsMode
from phalanx.server.tls_context import ServerCertificate


class CannotListen(Exception):  # noqa: N818
    """The server cannot listen; the message says why and what to do."""


class Listening:
    """A bound socket, which does not listen yet, and its certificate."""

    certificate: ServerCertificate | None = None  #: None without TLS

    def __init__(self, config: Config) -> None:
        """Raises CannotListen."""
        self._host: str = config["host"]
        self._advertised: str | None = config["advertise_url"]
        is_plain = config["tls"] == TlsMode.OFF and config["tls_cert"] is None
        self.scheme = "http" if is_plain else "https"
        try:
            self.socket = _bind(self._host, config["port"])
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {self._host} port {config['port']}:"
                f" {error.strerror or type(error).__name__}; choose another with --host and --port"
            ) from error
        self.port: int = self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        host = self._host
        if _is_any(host):
            host = socket.gethostname()
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def advertised(self) -> str:
        return self._advertised or self.url

    def names(self) -> Iterator[str]:
        """The host names and addresses of this server, for its certificate."""
        yield from (urlsplit(url).hostname or "" for url in (self.advertised, self.url))
        yield from ("localhost", "127.0.0.1", "::1")
        host = socket.gethostname()
        yield host
        if _is_any(self._host):
            with suppress(OSError):
                for _, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                    yield str(address[0])


def is_loopback(host: str) -> bool:
    """Whether only this host can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_open(config: Config) -> bool:
    """Whether the server accepts requests without a token."""
    return is_loopback(config["host"]) and bool(config["loopback_open"])


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = addresses[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound
