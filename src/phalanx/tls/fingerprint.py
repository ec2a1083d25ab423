"""The fingerprint of a certificate: `sha256:` and 64 hexadecimal digits."""

import hashlib
import re
import ssl

_FORM = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_of(pem: str) -> str:
    """The fingerprint of a certificate. Raises ValueError if it is not one."""
    return f"sha256:{hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()}"


def read_fingerprint(text: str) -> str:
    """The fingerprint in its normal form. Raises ValueError."""
    fingerprint = text.strip().lower()
    if not _FORM.fullmatch(fingerprint):
        raise ValueError(
            f"{text!r} is not a fingerprint; write sha256: and 64 hexadecimal digits, as the server"
            " prints it at its start"
        )
    return fingerprint
