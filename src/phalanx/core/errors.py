"""What the core refuses. A refusal says what, which, in which state, and what to do."""

from typing import NamedTuple


class CoreError(Exception):
    """A command that was refused. It changed nothing."""


class Problem(NamedTuple):
    """One thing that is wrong with what a user wrote."""

    path: str  #: `roles.worker.min`; empty for the whole document
    message: str  #: goes on from the path (`is 9 but replicas is 8`); a sentence if there is none

    def __str__(self) -> str:
        return f"{self.path} {self.message}" if self.path else self.message


class Invalid(CoreError):  # noqa: N818
    """Input that was refused whole, with every problem in it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in problems))


class Unknown(CoreError):  # noqa: N818
    """It is not among the unfinished: it never was, or it has ended."""


class Conflict(CoreError):  # noqa: N818
    """It is not in a state in which this can be done."""


class Duplicate(Conflict):
    """The idempotency key was used before; `job` is the job that was submitted with it."""

    def __init__(self, key: str, job: str) -> None:
        self.job = job
        super().__init__(f"idempotency key {key} was already used for job {job}")


class StaleEpoch(Conflict):
    """A message about an earlier attempt. The present one is not touched."""


class IllegalTransition(CoreError):  # noqa: N818
    """The table has no such move. Either the message is out of order or there is a bug."""
