"""Errors of the core. A message says what was refused, in which state, and what to do."""

from typing import NamedTuple


class CoreError(Exception):
    """An event was refused and has changed nothing."""


class Problem(NamedTuple):
    """One problem in the user's input."""

    path: str  #: `roles.worker.min`; empty for the whole document
    message: str  #: continues the path (`is 9 but replicas is 8`); a sentence if the path is empty

    def __str__(self) -> str:
        return f"{self.path} {self.message}" if self.path else self.message


class Invalid(CoreError):  # noqa: N818
    """The input was refused as a whole, with all its problems."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in problems))


class Unknown(CoreError):  # noqa: N818
    """No such unfinished job, task, worker, queue or cron: it never existed, or it has ended."""


class Conflict(CoreError):  # noqa: N818
    """The state does not allow the command."""


class LimitReached(Conflict):
    """The namespace has as many jobs or tasks as it may have."""


class NotPermitted(CoreError):  # noqa: N818
    """The namespace of a job may not use what the job asks for."""


class StaleEpoch(Conflict):
    """The message is about an earlier attempt; the present one is not affected."""


class IllegalTransition(CoreError):  # noqa: N818
    """The transition table has no such move: the message is out of order, or there is a bug."""
