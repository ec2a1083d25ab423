"""The Python SDK: `Client`, and the errors that it raises."""

from phalanx.client.client import Client
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

__all__ = [
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
