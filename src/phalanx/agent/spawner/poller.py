"""Waits for several files to become readable, and calls the handler of each one that is."""

import select
from collections.abc import Callable


class Poller:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching a file; does nothing if it is not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def poll(self, timeout_s: float) -> None:
        """Wait for at least one readable file, at most so long (for ever if negative)."""
        for fd, _ in self._epoll.poll(timeout_s):
            # An earlier handler may have closed this one.
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
