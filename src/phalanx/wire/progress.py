"""Views of the progress that tasks report. Times are RFC 3339 in UTC."""

import msgspec


class LagView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rank that is furthest behind the others."""

    task: int  #: the task's number in its job
    rank: int
    step: int
    behind_steps: int  #: behind the median rank
    behind_s: float  #: the time in which the median rank makes these steps
    worker: str | None = None


class ProgressView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a job: step and rate are those of its slowest rank."""

    step: int
    at: str  #: when the step was reported
    total: int | None = None  #: the last step, if a task has reported it
    rate: float | None = None  #: steps per second
    eta_s: float | None = None  #: estimated seconds to the last step
    values: dict[str, float | None] = {}  #: the latest of the lowest rank; null is not finite
    lagging: LagView | None = None


class RankProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    task: int  #: the task's number in its job
    rank: int
    step: int | None = None
    total: int | None = None
    rate: float | None = None  #: steps per second
    at: str | None = None  #: when the step was reported
    worker: str | None = None
    values: dict[str, float | None] = {}  #: the latest; null is not a finite number


class ValuePoint(msgspec.Struct, frozen=True, array_like=True):
    step: int
    value: float | None  #: null is not a finite number


class JobProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of every rank, and the history of each value of the lowest rank."""

    progress: ProgressView | None = None  #: null if no task has reported a step
    ranks: tuple[RankProgress, ...] = ()
    history: dict[str, tuple[ValuePoint, ...]] = {}
