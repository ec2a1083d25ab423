"""The server's socket and its addresses, and whether they are reachable from other hosts."""

import ipaddress
import socket
import ssl
from pathlib import Path

from phalanx.server.config import Config


class CannotListen(Exception):  # noqa: N818
    """The server cannot listen; the message says why and what to do."""


class Listening:
    """A bound socket, which does not listen yet."""

    def __init__(self, config: Config) -> None:
        """Raises CannotListen."""
        self._host: str = config["host"]
        self._advertised: str | None = config["advertise_url"]
        self.scheme = "http" if config["tls_cert"] is None else "https"
        if config["tls_cert"] is not None:
            _check_certificate(config["tls_cert"], config["tls_key"])
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


def is_loopback(host: str) -> bool:
    """Whether only this host can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _check_certificate(cert: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(
            f"{_certificate_problem(cert, key)}; check tls_cert and tls_key"
        ) from error


def _certificate_problem(cert: str, key: str) -> str:
    for path in (cert, key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror or type(error).__name__}"
    return f"{cert} and {key} are not a PEM certificate and its private key"


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
