"""Why a gang was stopped or a job ended: typed, ordered, and rendered to one sentence."""

from enum import StrEnum

import msgspec


class CauseKind(StrEnum):
    """Causes by rank, the lowest first. While a gang is stopping, a higher cause replaces a lower
    one."""

    EVICTION = "eviction"  #: a preemptor needs the capacity, or an operator asked for it
    REGROUP = "regroup"  #: below its minimum for too long; the gang is placed again as a unit
    FAILURE = "failure"  #: a task failed
    TIME_LIMIT = "time-limit"  #: the attempt ran longer than its time limit
    DEPENDENCY = "dependency"  #: a job that it depends on did not succeed
    SCHEDULE_TIMEOUT = "schedule-timeout"  #: the job was pending longer than its schedule timeout
    CANCEL = "cancel"  #: the job was cancelled
    COMPLETE = "complete"  #: the work is done; tasks that still run are not needed


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: CauseKind
    what: str  #: one sentence without its full stop
    task: int | None = None  #: the task whose failure it was
    by: str | None = None  #: the user or the job that wanted it

    def __str__(self) -> str:
        return self.what

    def outranks(self, other: "Cause") -> bool:
        return _RANKS[self.kind] > _RANKS[other.kind]


_RANKS = {kind: rank for rank, kind in enumerate(CauseKind)}
