"""Errors with one attempt: logged, so that the spawner continues with the others."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

#: The log of the spawner is not rotated while it runs.
_LOGGED = 1000


class AttemptErrors:
    def __init__(self) -> None:
        self._left = _LOGGED

    @contextmanager
    def contained(self) -> Iterator[None]:
        """Log an exception of the block, and continue after the block."""
        try:
            yield
        except Exception:
            if self._left > 0:
                self._left -= 1
                traceback.print_exc()
