"""Phalanx, a gang scheduler: `phalanx.Client` for its API, `phalanx.task` for task programs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.client import Client as Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    # Imported on first use: a task that only needs its rank should not load an HTTP client.
    if name == "Client":
        from phalanx.client import Client  # noqa: PLC0415

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
