"""Phalanx, a gang scheduler: `phalanx.Client` for its API, `phalanx.task` for task programs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx import task as task
    from phalanx.client import AsyncClient as AsyncClient
    from phalanx.client import Client as Client
    from phalanx.client import ConflictError as ConflictError
    from phalanx.client import DeniedError as DeniedError
    from phalanx.client import InvalidError as InvalidError
    from phalanx.client import NotFoundError as NotFoundError
    from phalanx.client import PhalanxError as PhalanxError
    from phalanx.client import RefusedError as RefusedError
    from phalanx.client import TooManyRequestsError as TooManyRequestsError
    from phalanx.client import UnknownOutcomeError as UnknownOutcomeError
    from phalanx.client import UnreachableError as UnreachableError
    from phalanx.client import UntrustedError as UntrustedError
    from phalanx.core.model import Phase as Phase

#: The modules of what is public. Each is imported at its first use: a task that only needs its rank
#: should not load an HTTP client.
_MODULES = {
    "AsyncClient": "phalanx.client",
    "Client": "phalanx.client",
    "ConflictError": "phalanx.client",
    "DeniedError": "phalanx.client",
    "InvalidError": "phalanx.client",
    "NotFoundError": "phalanx.client",
    "Phase": "phalanx.core.model",
    "PhalanxError": "phalanx.client",
    "RefusedError": "phalanx.client",
    "TooManyRequestsError": "phalanx.client",
    "UnknownOutcomeError": "phalanx.client",
    "UnreachableError": "phalanx.client",
    "UntrustedError": "phalanx.client",
    "task": "phalanx.task",
}
__all__ = [*_MODULES]  # noqa: PLE0604


def __dir__() -> list[str]:
    return sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "task":
        return import_module("phalanx.task")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
