"""Phalanx: a gang scheduler. `phalanx.Client` speaks to a server, `phalanx.task` is for tasks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.client import Client as Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    # Not at once: a task that only wants its rank should not load an HTTP client for it.
    if name == "Client":
        from phalanx.client import Client  # noqa: PLC0415

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
