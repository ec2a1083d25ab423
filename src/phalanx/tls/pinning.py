"""Trust in a server whose certificate authority is pinned by its fingerprint.

At the first contact the authority's certificate is fetched over a connection that is not verified,
compared with the fingerprint, and stored. All later connections are verified against it only.
"""

import http.client
import re
import ssl
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from phalanx.host.file_replacement import write_private
from phalanx.tls.fingerprint import fingerprint_of
from phalanx.tls.problems import tls_problem

_FETCH_S = 10.0
_MAX_BUNDLE_BYTES = 65536
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\n?"
)


class FingerprintMismatch(Exception):  # noqa: N818
    """The server's authority has another fingerprint; the message names both."""


class Pin:
    """A pinned authority: its fingerprint, and the file with the certificates that are trusted.

    At first this is the authority that the fingerprint names. A verified connection may replace it
    by all authorities of the cluster, after which the fingerprint is only the name of the file.
    """

    def __init__(self, fingerprint: str, folder: Path) -> None:
        self.fingerprint = fingerprint
        self.file = folder / f"ca-{fingerprint.removeprefix('sha256:')}.pem"

    def trusted(self, urls: Iterable[str]) -> str:
        """The certificates that are trusted, in PEM, fetched from a server if there are none yet.

        Raises FingerprintMismatch, or ConnectionError if no server answers.
        """
        try:
            return self.file.read_text("ascii")
        except FileNotFoundError:
            bundle = self._first_contact(urls)
        with suppress(OSError):  # otherwise the next process compares the fingerprint again
            self.store(bundle)
        return bundle

    def store(self, bundle: str) -> None:
        """Trust these certificates from now on. They must come from a verified connection."""
        write_private(self.file, bundle)

    def _first_contact(self, urls: Iterable[str]) -> str:
        """The certificate that the fingerprint names, in PEM."""
        errors = []
        for url in urls:
            try:
                offered = _fetch(url)
            except (OSError, http.client.HTTPException) as error:
                errors.append(f"{url}: {tls_problem(error) or error}")
                continue
            for certificate in offered:
                if fingerprint_of(certificate) == self.fingerprint:
                    return certificate
            listed = ", ".join(map(fingerprint_of, offered))
            raise FingerprintMismatch(
                f"{url} has another certificate authority than the fingerprint names:"
                f" its fingerprint is {listed}, expected {self.fingerprint};"
                " do not connect before you know why: compare with `phalanx ca list` on the server"
            )
        raise ConnectionError("; ".join(errors))


def certificates_of(bundle: str) -> list[str]:
    """The certificates of a bundle, each in PEM."""
    return _CERTIFICATE.findall(bundle)


def _fetch(url: str) -> list[str]:
    """The authorities that a server offers, over a connection that is not verified."""
    parts = urlsplit(url)
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=_FETCH_S, context=unverified
    )
    try:
        connection.request("GET", f"{parts.path}/ca")
        reply = connection.getresponse()
        body = reply.read(_MAX_BUNDLE_BYTES)
    finally:
        connection.close()
    offered = certificates_of(body.decode("ascii", "replace"))
    if not offered:
        raise ConnectionError(
            f"answered GET /ca with status {reply.status} and no certificate; only a server with"
            " `tls auto` has an authority to pin"
        )
    return offered
