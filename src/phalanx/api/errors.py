"""Every error in one form: a code for programs, a message for people, and the fields concerned."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import msgspec
import structlog
from litestar import MediaType, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import Scope

from phalanx.api.parameters import parameter_problems
from phalanx.core.errors import (
    Conflict,
    CoreError,
    IllegalTransition,
    Invalid,
    LimitReached,
    NotPermitted,
    Problem,
    StaleEpoch,
    Unknown,
)
from phalanx.engine.errors import (
    NotLeading,
    Overloaded,
    TooManyRequests,
    Unavailable,
    UncertainOutcome,
)
from phalanx.engine.idempotency import KeyReused
from phalanx.identity.principal import CertificateRequired, Forbidden, Revoked, Unauthorised
from phalanx.store.protocol import OutcomeUnknown, StoreError
from phalanx.wire.errors import ErrorBody, ErrorDetail, ErrorInfo, unknown_outcome

_log = structlog.get_logger("phalanx.api")
_encode = msgspec.json.Encoder().encode

_RETRY = {"Retry-After": "1"}
#: How much of a path or a name an error repeats.
_SHOWN_CHARS = 80


class TooLarge(Exception):  # noqa: N818
    """The body is larger than the limit."""


class UnsupportedType(Exception):  # noqa: N818
    """The body has a content type that the server does not read."""


class Refusal(NamedTuple):
    status: int
    info: ErrorInfo
    headers: Mapping[str, str] = {}

    @property
    def body(self) -> bytes:
        return _encode(ErrorBody(self.info))


#: The first class that matches counts.
_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (Unknown, 404, "not_found"),
    (StaleEpoch, 409, "stale_epoch"),
    (KeyReused, 409, "key_reused"),
    (LimitReached, 409, "limit_reached"),
    (Conflict, 409, "conflict"),
    (IllegalTransition, 409, "conflict"),
    (TooLarge, 413, "too_large"),
    (UnsupportedType, 415, "unsupported_media_type"),
    (Revoked, 401, "revoked"),
    (CertificateRequired, 401, "certificate_required"),
    (Unauthorised, 401, "unauthorised"),
    (Forbidden, 403, "forbidden"),
    (NotPermitted, 403, "forbidden"),
    (TooManyRequests, 429, "too_many_requests"),
    (Overloaded, 503, "overloaded"),
    (CoreError, 400, "refused"),
)
_HEADERS: dict[int, dict[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 503: _RETRY}
#: Codes of the framework's errors.
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def refusal_of(error: Exception, scope: Scope) -> Refusal:
    """The response to a request that raised this error."""
    if isinstance(error, Invalid):
        return Refusal(400, info_of(error))
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            return Refusal(status, ErrorInfo(code, _message(error)), _headers(error, status))
    if isinstance(error, NotLeading):
        return _not_leading(error, scope)
    if isinstance(error, UncertainOutcome | Unavailable | StoreError):
        return _of_store(error)
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _of_framework(error, scope)
    _log.error("request failed", path=scope["path"], exc_info=error)
    message = "bug: the server failed to handle this request; its log has the details"
    return Refusal(500, ErrorInfo("internal", message))


def _of_store(error: Exception) -> Refusal:
    if isinstance(error, UncertainOutcome | OutcomeUnknown):
        return Refusal(504, unknown_outcome(str(error)), _RETRY)
    message = f"the database did not answer: {error}; nothing was changed, try again"
    return Refusal(503, ErrorInfo("unavailable", message), _RETRY)


def info_of(error: CoreError) -> ErrorInfo:
    """The error of one job in a batch, or of a whole request."""
    if isinstance(error, Invalid):
        details = tuple(ErrorDetail(*problem) for problem in error.problems)
        return ErrorInfo("invalid", str(error), details)
    code = next(code for kind, _, code in _KNOWN if isinstance(error, kind))
    return ErrorInfo(code, _message(error))


def wrong(path: str, message: str) -> Invalid:
    """An error about one field; the message continues its path."""
    return Invalid([Problem(path, message)])


def _headers(error: Exception, status: int) -> Mapping[str, str]:
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(error.retry_after_s)}
    return _HEADERS.get(status, {})


def _message(error: Exception) -> str:
    return str(error) or type(error).__doc__ or type(error).__name__


def _not_leading(error: NotLeading, scope: Scope) -> Refusal:
    if error.url is None:
        message = "no server is the leader at the moment; nothing was changed, try again"
        return Refusal(503, ErrorInfo("no_leader", message), _RETRY)
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    target = error.url.rstrip("/") + raw.partition(b"?")[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    location = f"{target}?{query}" if query else target
    message = f"this server is a standby; the leader is {error.url}"
    return Refusal(307, ErrorInfo("not_leading", message), {"Location": location})


def _of_framework(error: HTTPException, scope: Scope) -> Refusal:
    """The framework's errors, in our words."""
    if isinstance(error, ValidationException):
        return Refusal(400, info_of(Invalid(parameter_problems(error, scope))))
    code = _HTTP_CODES.get(error.status_code, "invalid")
    headers = {str(k): str(v) for k, v in (error.headers or {}).items()}
    path = scope["path"][:_SHOWN_CHARS]
    if error.status_code == 405:
        message = f"{path} has no such method; it has {_methods(headers)}"
    elif error.status_code == 404:
        message = f"there is no path {path}; /openapi lists the paths of this server"
    else:
        message = "the request cannot be read; /openapi describes the requests of this server"
    return Refusal(error.status_code, ErrorInfo(code, message), headers)


def _methods(headers: Mapping[str, str]) -> str:
    allowed = next((value for name, value in headers.items() if name.lower() == "allow"), "")
    return " and ".join(sorted(set(allowed.split(", ")) - {"OPTIONS"}))


def response_of(refusal: Refusal) -> Response[bytes]:
    return Response(
        refusal.body,
        status_code=refusal.status,
        headers=dict(refusal.headers),
        media_type=MediaType.JSON,
    )
