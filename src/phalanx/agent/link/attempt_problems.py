"""Problems with an attempt that do not end it: they become events of its job.

A task may leave anything in its folder, and a disk may fail. None of it may end the link, which
serves other attempts too.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from phalanx.agent.link.reports import TaskReports
from phalanx.agent.messages import AttemptKey

_MESSAGE_CHARACTERS = 300


class AttemptProblems:
    def __init__(self, reports: TaskReports) -> None:
        self._reports = reports
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def report(self, key: AttemptKey, message: str) -> None:
        """Report a problem to the server, once."""
        if self._add(key, message):
            self._log.warning("problem with a task", task=key[0], attempt=key[1], problem=message)

    def _add(self, key: AttemptKey, message: str) -> bool:
        # Names of files may have bytes that are not UTF-8.
        message = message.encode(errors="replace").decode()[:_MESSAGE_CHARACTERS]
        return self._reports.add_problem(key, message)

    @contextmanager
    def contained(self, key: AttemptKey, action: str) -> Iterator[None]:
        """Report an exception of the block as a problem, and continue after the block."""
        try:
            yield
        except Exception as error:
            if self._add(key, f"the worker could not {action}: {type(error).__name__}: {error}"):
                self._log.exception("error with a task", task=key[0], attempt=key[1], action=action)
