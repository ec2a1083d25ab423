"""The Python SDK: `Client`, `AsyncClient`, and the errors that they raise."""

from typing import TYPE_CHECKING, Any

from phalanx.client.errors import (
    ConflictError,
    DeniedError,
    InvalidError,
    NotFoundError,
    PhalanxError,
    RefusedError,
    TooManyRequestsError,
    UnknownOutcomeError,
    UnreachableError,
    UntrustedError,
)

if TYPE_CHECKING:
    from phalanx.client.async_client import AsyncClient as AsyncClient
    from phalanx.client.client import Client as Client

__all__ = [
    "AsyncClient",
    "Client",
    "ConflictError",
    "DeniedError",
    "InvalidError",
    "NotFoundError",
    "PhalanxError",
    "RefusedError",
    "TooManyRequestsError",
    "UnknownOutcomeError",
    "UnreachableError",
    "UntrustedError",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: a worker that only needs the client's settings has no use for `httpx`.
    if name == "Client":
        from phalanx.client.client import Client  # noqa: PLC0415

        return Client
    if name == "AsyncClient":
        from phalanx.client.async_client import AsyncClient  # noqa: PLC0415

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
