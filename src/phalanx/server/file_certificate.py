"""A server certificate from files of the operator, loaded again when they change."""

import asyncio
import ssl
from pathlib import Path

from phalanx.server.listening import CannotListen
from phalanx.server.log_output import Logger
from phalanx.server.tls_context import server_context

#: How often the files are checked for changes.
_REFRESH_S = 2.0


class FileCertificate:
    """The server's TLS context with the certificate of two files."""

    def __init__(self, certificate: str, key: str, log: Logger) -> None:
        """Raises CannotListen."""
        self.context = server_context()
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._log = log
        try:
            self._version = self._stamp()
            self.context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise CannotListen(f"{self._problem()}; check tls_cert and tls_key") from error

    def refresh(self) -> None:
        """Load the files if they have changed. Files that do not fit are left for the next time."""
        try:
            version = self._stamp()
            if version == self._version:
                return
            # A probe: an error must not leave half of the pair in the context in use.
            server_context().load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError):
            self._log.warning("server certificate not loaded", error=self._problem())
            return
        self._version = version
        self._log.info("server certificate loaded", file=str(self._certificate))

    async def keep_current(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            self.refresh()

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        stats = (path.stat() for path in (self._certificate, self._key))
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _problem(self) -> str:
        for path in (self._certificate, self._key):
            try:
                path.read_bytes()
            except OSError as error:
                return f"{path} cannot be read: {error.strerror or type(error).__name__}"
        return f"{self._certificate} and {self._key} are not a PEM certificate and its private key"
