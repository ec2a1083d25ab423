"""The worker's side of TLS: the authorities that it trusts, and the certificate that it shows.

The key of the certificate never leaves this machine, and a new certificate has a new key. Changes
are for new connections; open ones continue with what they began with.
"""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509

from phalanx.host.file_replacement import write_private
from phalanx.tls import authority as ca

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from phalanx.tls.pinning import Pin


class TlsIdentity:
    def __init__(
        self,
        file: Path,
        pin: "Pin | None" = None,
        trusted: str = "",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`file` has the certificate and its key; `trusted` is the bundle of the pin, if any.
        Without a pin, the authorities of the system are trusted."""
        self._file = file
        self._pin = pin
        self._trusted = trusted
        self._clock = clock
        self._certificate: x509.Certificate | None = None
        self._key: ec.EllipticCurvePrivateKey | None = None
        self._context = self._load()

    @property
    def is_due(self) -> bool:
        """Whether the certificate expires soon. Without one, nothing is due."""
        return self._certificate is not None and ca.is_due(self._certificate, self._clock())

    def context(self) -> ssl.SSLContext:
        """For the next connection to a server."""
        return self._context

    def request(self) -> str:
        """A signing request for a new key, in PEM."""
        self._key = ca.new_key()
        return ca.signing_request(self._key)

    def accept(self, certificate: str, authorities: str) -> None:
        """Store the certificate of the last request and the authorities of the cluster, in PEM.

        Raises OSError if they cannot be stored, and ValueError if they are not certificates.
        """
        if self._key is None:
            raise ValueError("bug: a certificate that was not requested")
        x509.load_pem_x509_certificate(certificate.encode())
        if self._pin is not None:
            x509.load_pem_x509_certificates(authorities.encode())
            self._pin.store(authorities)
            self._trusted = authorities
        write_private(self._file, ca.key_to_pem(self._key) + certificate)
        self._context = self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._trusted or None)
        self._certificate = self._usable()
        if self._certificate is not None:
            context.load_cert_chain(self._file)
        return context

    def _usable(self) -> x509.Certificate | None:
        """The stored certificate. A server refuses the whole connection for one that has expired or
        is of another authority, so that the worker could not even join again."""
        try:
            certificate = x509.load_pem_x509_certificate(self._file.read_bytes())
        except (OSError, ValueError):
            return None
        if self._clock() >= certificate.not_valid_after_utc:
            return None
        if self._trusted:
            authorities = x509.load_pem_x509_certificates(self._trusted.encode())
            if not any(ca.is_issued_by(certificate, each) for each in authorities):
                return None
        return certificate
