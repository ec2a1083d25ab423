"""The fingerprint of a certificate: `sha256:` and 64 hexadecimal digits."""

import re

from cryptography import x509
from cryptography.hazmat.primitives import hashes

_FORM = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_of(certificate: x509.Certificate) -> str:
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


def read_fingerprint(text: str) -> str:
    """The fingerprint in its normal form. Raises ValueError."""
    fingerprint = text.strip().lower()
    if not _FORM.fullmatch(fingerprint):
        raise ValueError(
            f"{text!r} is not a fingerprint; write sha256: and 64 hexadecimal digits, as the server"
            " prints it at its start"
        )
    return fingerprint
