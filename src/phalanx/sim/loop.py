"""An event loop whose time is virtual: when nothing is left to do now, it is later at once."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):  # noqa: N818
    """Everybody waits and no timer is set."""


class _NoWaiting(selectors.SelectSelector):
    """Waits for nobody: it moves the clock by the time it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits, and nothing is due")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = _NoWaiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.now_s


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, however long that would take in the world."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
