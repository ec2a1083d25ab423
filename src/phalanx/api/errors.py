"""Every refusal in one form: what went wrong, for programs and for people, and what to correct."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import Scope

from phalanx.api.auth import Forbidden, Unauthorised
from phalanx.core.errors import (
    Conflict,
    CoreError,
    IllegalTransition,
    Invalid,
    Problem,
    StaleEpoch,
    Unknown,
)
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.store.protocol import StoreError
from phalanx.wire.errors import ErrorBody, ErrorDetail, ErrorInfo

_log = structlog.get_logger("phalanx.api")
_encode = msgspec.json.Encoder().encode

_RETRY = {"Retry-After": "1"}


class TooLarge(Exception):  # noqa: N818
    """More bytes than are taken."""


class UnsupportedType(Exception):  # noqa: N818
    """A content type that is not read here."""


class Refusal(NamedTuple):
    status: int
    info: ErrorInfo
    headers: Mapping[str, str] = {}

    @property
    def body(self) -> bytes:
        return _encode(ErrorBody(self.info))


#: The first class that fits counts.
_KNOWN: tuple[tuple[type[Exception], int, str], ...] = (
    (Unknown, 404, "not_found"),
    (StaleEpoch, 409, "stale_epoch"),
    (Conflict, 409, "conflict"),
    (IllegalTransition, 409, "conflict"),
    (TooLarge, 413, "too_large"),
    (UnsupportedType, 415, "unsupported_media_type"),
    (Unauthorised, 401, "unauthorised"),
    (Forbidden, 403, "forbidden"),
    (CoreError, 400, "refused"),
)
_HEADERS: dict[int, dict[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 503: _RETRY}
_HTTP_CODES = {
    400: "invalid",
    401: "unauthorised",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}


def refusal_of(error: Exception, scope: Scope) -> Refusal:
    if isinstance(error, Invalid):
        return Refusal(400, info_of(error))
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            return Refusal(status, ErrorInfo(code, _said(error)), _HEADERS.get(status, {}))
    if isinstance(error, NotLeading):
        return _not_leading(error, scope)
    if isinstance(error, Unavailable | StoreError):
        return Refusal(503, ErrorInfo("unavailable", f"the store does not answer: {error}"), _RETRY)
    if isinstance(error, HTTPException):
        return _of_framework(error)
    _log.error("request failed", path=scope["path"], exc_info=error)
    return Refusal(500, ErrorInfo("internal", "bug: the server failed; its log says why"))


def info_of(error: CoreError) -> ErrorInfo:
    """The refusal of one thing among many."""
    if isinstance(error, Invalid):
        details = tuple(ErrorDetail(*problem) for problem in error.problems)
        return ErrorInfo("invalid", str(error), details)
    code = next(code for kind, _, code in _KNOWN if isinstance(error, kind))
    return ErrorInfo(code, _said(error))


def wrong(path: str, message: str) -> Invalid:
    return Invalid([Problem(path, message)])


def _said(error: Exception) -> str:
    return str(error) or type(error).__doc__ or type(error).__name__


def _not_leading(error: NotLeading, scope: Scope) -> Refusal:
    if error.url is None:
        return Refusal(503, ErrorInfo("no_leader", "no server leads at the moment"), _RETRY)
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    target = error.url.rstrip("/") + raw.partition(b"?")[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    location = f"{target}?{query}" if query else target
    return Refusal(
        307, ErrorInfo("not_leading", f"the leader is {error.url}"), {"Location": location}
    )


def _of_framework(error: HTTPException) -> Refusal:
    details: tuple[ErrorDetail, ...] = ()
    extra: Any = error.extra
    if isinstance(error, ValidationException) and isinstance(extra, list):
        details = tuple(
            ErrorDetail(str(item.get("key", "")), str(item.get("message", ""))) for item in extra
        )
    elif isinstance(error, ValidationException):
        details = (ErrorDetail(_parameter(error.detail), error.detail),)
    code = _HTTP_CODES.get(error.status_code, "refused")
    headers = {str(k): str(v) for k, v in (error.headers or {}).items()}
    return Refusal(error.status_code, ErrorInfo(code, error.detail, details), headers)


def _parameter(message: str) -> str:
    """The parameter that the framework's message is about: `Missing … parameter 'epoch' …`."""
    parts = message.split("'")
    return parts[1] if len(parts) > 2 else ""


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    refusal = refusal_of(error, request.scope)
    return Response(
        refusal.body,
        status_code=refusal.status,
        headers=dict(refusal.headers),
        media_type=MediaType.JSON,
    )
