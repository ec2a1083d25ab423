"""Errors with one attempt: logged and reported, and the spawner continues with the others."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.agent.spawner.running_attempt import RunningAttempt

#: The log of the spawner is not rotated while it runs.
_LOGGED = 1000


class AttemptErrors:
    def __init__(self) -> None:
        self._left = _LOGGED

    @contextmanager
    def contained(self, attempt: RunningAttempt | None = None) -> Iterator[None]:
        """Log an exception of the block and continue after it; the attempt's end will say so."""
        try:
            yield
        except Exception as error:
            if attempt is not None:
                attempt.add_problem(f"error of the worker: {error!r}")
            self.log(traceback.format_exc())

    def log(self, text: str) -> None:
        """Write to the log of the spawner, unless it has become long."""
        if self._left > 0:
            self._left -= 1
            sys.stderr.write(f"{text.rstrip()}\n")
            sys.stderr.flush()
