"""TLS errors in words: what they mean and what to do."""

_NO_TLS = "the server does not use TLS; write http:// instead of https://"
_OTHER_NAME = (
    "the server's certificate is not for this address; use the server's advertise_url, or set"
    " advertise_url to this address"
)
_UNKNOWN = (
    "the server's certificate is signed by an unknown authority; if the server is the right one,"
    " pin its authority with `phalanx login URL --fingerprint SHA256` (a worker with its option"
    " --fingerprint), or with PHALANX_FINGERPRINT"
)
_OTHER_AUTHORITY = (
    "the server's certificate is not signed by the pinned authority {pinned}; another server"
    " answers at this address, or the authority was replaced: compare with `phalanx ca list` on the"
    " server"
)
_REFUSED = "the server refused the certificate of this client"
#: A part of OpenSSL's message, and what it means.
_MEANINGS = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "mismatch, certificate is not valid for": _OTHER_NAME,
    "certificate has expired": "the server's certificate has expired; check the clocks of both"
    " hosts",
    "certificate is not yet valid": "the server's certificate is not valid yet; check the clocks of"
    " both hosts",
    "unsuitable certificate purpose": "the server has a certificate that is not for servers",
    "ALERT_UNKNOWN_CA": _REFUSED,
    "ALERT_BAD_CERTIFICATE": _REFUSED,
    "ALERT_CERTIFICATE": _REFUSED,
}


def tls_problem(error: BaseException, pinned: str = "") -> str | None:
    """What a TLS error means and what to do; None if the error is another one.

    `pinned` is the fingerprint of the authority that the client trusts, if it trusts only one.
    """
    text = str(error)
    for part, meaning in _MEANINGS.items():
        if part in text:
            return meaning
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return _OTHER_AUTHORITY.format(pinned=pinned) if pinned else _UNKNOWN
    return None
