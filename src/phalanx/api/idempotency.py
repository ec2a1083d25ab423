"""The `Idempotency-Key` of a request."""

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from litestar import Request
from litestar.params import HeaderParameter

from phalanx.api.auth import principal_of
from phalanx.api.errors import wrong
from phalanx.api.services import services_of
from phalanx.engine.idempotency import ClaimedKey, RequestKey

_KEY_CHARS = 255

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        required=False,
        description="A request that is repeated with the same key is carried out once.",
    ),
]


def request_key(
    request: Request[Any, Any, Any], key: str | None, *options: str | bool
) -> RequestKey | None:
    """The key of the caller, for a request with these options. Raises Invalid."""
    if key is None:
        return None
    if not key or len(key) > _KEY_CHARS or not key.isascii() or not key.isprintable():
        raise wrong(
            "Idempotency-Key", f"is not a key; write 1 to {_KEY_CHARS} printable ASCII characters"
        )
    principal, scope = principal_of(request), request.scope
    action: tuple[str | bool, ...] = (scope["method"], scope["path"], *options)
    return RequestKey(principal.token_id or principal.name, key, action, principal.may_see)


def claim(
    request: Request[Any, Any, Any], key: str | None, *options: str
) -> AbstractAsyncContextManager[ClaimedKey]:
    """Claim the key for a request without content. Raises KeyReused."""
    return services_of(request).idempotency_keys.claim(request_key(request, key, *options))
