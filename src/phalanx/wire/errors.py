"""The form of every error."""

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    """One problem of a request."""

    path: str  #: the field, like `roles.worker.min`; empty for the whole body
    message: str  #: continues the path; a sentence of its own if the path is empty


class ErrorInfo(msgspec.Struct, frozen=True):
    code: str  #: for programs: `invalid`, `not_found`, `conflict`, `stale_epoch`, `no_leader`…
    message: str  #: for people
    details: tuple[ErrorDetail, ...] = ()


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


_decode = msgspec.json.Decoder(ErrorBody).decode


def error_info(body: bytes) -> ErrorInfo:
    """The error in a body. A body in another form comes from a proxy in between."""
    try:
        return _decode(body).error
    except msgspec.MsgspecError:
        return ErrorInfo("unknown", body.decode(errors="replace")[:500])


def error_message(body: bytes) -> str:
    return error_info(body).message


def unknown_outcome(why: str) -> ErrorInfo:
    """The error of a change that may or may not have been made."""
    return ErrorInfo(
        "outcome_unknown",
        f"{why}; the change may or may not have been made: repeat the request with the same"
        " Idempotency-Key to find out, or check before you repeat it without a key",
    )
