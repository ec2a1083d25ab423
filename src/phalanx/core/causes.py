"""Why a gang was stopped or a job ended: typed, ordered, and rendered to one sentence."""

from enum import IntEnum

import msgspec


class Kind(IntEnum):
    """Causes by rank: a higher one takes an open drain over, a lower one leaves it as it is."""

    EVICTION = 1  #: its capacity is given to another job, or an operator asked for it
    REGROUP = 2  #: below its minimum for too long; the gang is placed again as a unit
    FAILURE = 3  #: a task failed
    TIME_LIMIT = 4  #: the attempt ran longer than its job allows
    DEPENDENCY = 5  #: a job it waits for did not succeed
    TIMED_OUT = 6  #: it waited longer than its job allows
    CANCEL = 7  #: its user does not want it any more
    COMPLETE = 8  #: its work is done; what still runs is not needed


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: Kind
    what: str  #: one sentence without its full stop
    task: int | None = None  #: the task whose failure it was
    by: str | None = None  #: the user or the job that wanted it

    def __str__(self) -> str:
        return self.what
