"""Errors with one attempt: logged and reported, and the spawner continues with the others."""

import sys
import traceback
from types import TracebackType

from phalanx.agent.spawner.running_attempt import RunningAttempt

#: The log of the spawner is not rotated while it runs.
_LOGGED = 1000


class AttemptErrors:
    def __init__(self) -> None:
        self._left = _LOGGED

    def contained(self, attempt: RunningAttempt | None = None) -> "_Contained":
        """Log an exception of the block and continue after it; the attempt's end will say so."""
        return _Contained(self, attempt)

    def log(self, text: str) -> None:
        """Write to the log of the spawner, unless it has become long."""
        if self._left > 0:
            self._left -= 1
            sys.stderr.write(f"{text.rstrip()}\n")
            sys.stderr.flush()


class _Contained:
    # Entered several times for each task: a class is cheaper than a generator.
    __slots__ = ("_attempt", "_errors")

    def __init__(self, errors: AttemptErrors, attempt: RunningAttempt | None) -> None:
        self._errors = errors
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._attempt is not None:
            self._attempt.add_problem(f"error of the worker: {error!r}")
        self._errors.log("".join(traceback.format_exception(kind, error, trace)))
        return True
