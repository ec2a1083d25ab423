"""Why a job is pending: typed values with one sentence each, the same wherever they are shown.

In order of precedence. The first four follow from the job alone; the planner adds the rest. Each
sentence can stand alone and can follow `pending: `. They are about tasks and workers; where these
are called otherwise, such as pods and nodes, `core.text.reworded` replaces the words.
"""

import msgspec

from phalanx.core.model import Job
from phalanx.core.spec import quantities
from phalanx.core.text import listed, utc_time
from phalanx.core.time_units import Micros


class OnHold(msgspec.Struct, frozen=True, tag=True):
    def __str__(self) -> str:
        return "on hold until it is released"


class QueueStopped(msgspec.Struct, frozen=True, tag=True):
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is stopped"


class After(msgspec.Struct, frozen=True, tag=True):
    jobs: tuple[str, ...]

    def __str__(self) -> str:
        return f"runs after {listed(self.jobs)}, which {_have(self.jobs)} not finished"


class Backoff(msgspec.Struct, frozen=True, tag=True):
    until: Micros
    why: str = ""  #: why the last attempt was given up before it started

    def __str__(self) -> str:
        if self.why:
            return f"{self.why}; next attempt at {utc_time(self.until)}"
        return f"backing off after a failure, next attempt at {utc_time(self.until)}"


class OtherElementsFirst(msgspec.Struct, frozen=True, tag=True):
    """Of an element of an array that is no job of its own yet."""

    parallel: int | None  #: how many elements of the array run at the same time

    def __str__(self) -> str:
        if self.parallel is None:
            return "other elements of the array are placed first"
        elements = "1 element" if self.parallel == 1 else f"{self.parallel} elements"
        return f"the array runs {elements} at the same time (parallel)"


class WaitingForMembers(msgspec.Struct, frozen=True, tag=True):
    seen: int
    of: int | None  #: None if the PodGroup, which sets it, has not been submitted
    uncounted: int = 0  #: members running or done, which the match policy does not count

    def __str__(self) -> str:
        if self.uncounted:
            others = f"the match policy excludes the {self.uncounted} running or done"
            return f"only {self.seen} of {self.of} members are pending, {others}"
        if self.of is None:
            members = "1 member" if self.seen == 1 else f"{self.seen} members"
            return f"{members} submitted, the PodGroup is missing"
        return f"{self.seen} of {self.of} members submitted"


class WaitingForGroup(msgspec.Struct, frozen=True, tag=True):
    missing: tuple[str, ...]

    def __str__(self) -> str:
        have = _have(self.missing)
        return f"its group is incomplete: {listed(self.missing)} {have} not been submitted"


class NoNodeMatches(msgspec.Struct, frozen=True, tag=True):
    selector: dict[str, str]
    closed: dict[str, str] = {}  #: some nodes with the labels that take no tasks, each with why

    def __str__(self) -> str:
        wanted = ", ".join(f"{label}={value}" for label, value in sorted(self.selector.items()))
        labels = "label" if len(self.selector) == 1 else "labels"
        worker = "open worker" if self.closed else "worker"
        return f"no {worker} has the {labels} {wanted}{_closed(self.closed)}"


class NoNodeSatisfies(msgspec.Struct, frozen=True, tag=True):
    requirements: tuple[str, ...]

    def __str__(self) -> str:
        return f"no node satisfies {listed(self.requirements)}"


class NotSchedulable(msgspec.Struct, frozen=True, tag=True):
    """An obstacle that the caller of the planner has found."""

    kind: str  #: one word, for conditions and events
    message: str

    def __str__(self) -> str:
        return self.message


class NeverFits(msgspec.Struct, frozen=True, tag=True):
    short_of: str  #: the resource
    want: int
    largest: int  #: the most that the empty cluster offers: one node, or all nodes together
    per_task: bool = False  #: one task and one node; else the gang's minimum and all nodes
    closed: dict[str, str] = {}  #: some nodes that fit a task and take none, each with why

    def __str__(self) -> str:
        return f"{'does not fit' if self.closed else 'never fits'}: {self.shortfall}"

    @property
    def shortfall(self) -> str:
        """What is needed and what the empty cluster has."""
        return self._shortfall() + _closed(self.closed)

    def _shortfall(self) -> str:
        want = amount_in_words(self.short_of, self.want)
        if self.per_task:
            has = amount_in_words(self.short_of, self.largest, unit=False)
            worker = "open worker" if self.closed else "worker"
            return f"each task needs {want}, the largest {worker} has {has}"
        if self.short_of == "slots" and not self.largest:
            return "no worker accepts tasks"
        fits = amount_in_words(self.short_of, self.largest, unit=False)
        return f"the gang needs {want}, at most {fits} fit on the empty cluster"


class QueueLimit(msgspec.Struct, frozen=True, tag=True):
    queue: str
    resource: str
    #: Of a gang that exceeds the limit by itself: what it needs, and the limit.
    want: int | None = None
    limit: int | None = None

    def __str__(self) -> str:
        if self.want is not None and self.limit is not None:
            want = amount_in_words(self.resource, self.want)
            limit = amount_in_words(self.resource, self.limit, unit=False)
            return f"the gang needs {want}, the limit of queue {self.queue} is {limit}"
        return f"queue {self.queue} has reached its {unit_in_words(self.resource)} limit"


class QueueQuota(msgspec.Struct, frozen=True, tag=True):
    """The gang is not preemptible, and its queue keeps such gangs within its quota."""

    queue: str
    resource: str
    #: Of a gang that exceeds the quota by itself: what it needs, and the quota.
    want: int | None = None
    quota: int | None = None

    def __str__(self) -> str:
        if self.want is not None and self.quota is not None:
            want = amount_in_words(self.resource, self.want)
            most = amount_in_words(self.resource, self.quota, unit=False)
            needs = f"the gang is not preemptible and needs {want}"
            return f"{needs}, the quota of queue {self.queue} is {most}"
        quota = f"{unit_in_words(self.resource)} quota"
        return f"not preemptible, and queue {self.queue} has too little {quota} left"


class BelowMinResources(msgspec.Struct, frozen=True, tag=True):
    resource: str
    want: int  #: so much must be free in the cluster before the gang is tried
    free: int

    def __str__(self) -> str:
        want = amount_in_words(self.resource, self.want)
        free = amount_in_words(self.resource, self.free, unit=False)
        return f"not tried before {want} are free in total (min_resources), {free} are free"


class WaitingForVictims(msgspec.Struct, frozen=True, tag=True):
    tasks: tuple[str, ...]

    def __str__(self) -> str:
        return f"starts when {listed(self.tasks)} {_have(self.tasks)} stopped"


class HeldBack(msgspec.Struct, frozen=True, tag=True):
    for_job: str
    until: Micros | None

    def __str__(self) -> str:
        when = "" if self.until is None else f" (reserved start {utc_time(self.until)})"
        return f"held back: starting now would delay {self.for_job}{when}"


class NotEnough(msgspec.Struct, frozen=True, tag=True):
    want: int  #: tasks of the minimum
    fits: int
    short_of: str
    of_group: bool = False  #: the gang alone fits; the numbers are those of its group

    def __str__(self) -> str:
        tasks = "tasks of its group" if self.of_group else "tasks"
        return f"{self.fits} of {self.want} {tasks} fit ({shortage_in_words(self.short_of)})"


class Gathering(msgspec.Struct, frozen=True, tag=True):
    gathered: int  #: places that the gang holds
    want: int  #: places of its minimum
    because: str  #: why the others are missing

    def __str__(self) -> str:
        missing = self.want - self.gathered
        are = "is" if missing == 1 else "are"
        places = f"gathered {self.gathered} of {self.want} places"
        return f"{places}, {missing} {are} missing ({self.because})"


class AboveMinimum(msgspec.Struct, frozen=True, tag=True):
    """Of a job that runs: why tasks above its minimum have no place."""

    tasks: int
    because: str

    def __str__(self) -> str:
        tasks = "1 task above the minimum has" if self.tasks == 1 else None
        tasks = tasks or f"{self.tasks} tasks above the minimum have"
        return f"{tasks} no place ({self.because})"


class Fragmented(msgspec.Struct, frozen=True, tag=True):
    domain: str  #: what the tasks must fit into: `worker`, or the label the gang is packed by
    best: int  #: how many tasks fit into the best one

    def __str__(self) -> str:
        tasks = "1 task" if self.best == 1 else f"{self.best} tasks"
        return f"fragmented: enough is free in total, but the best {self.domain} fits {tasks}"


Reason = (
    OnHold
    | QueueStopped
    | After
    | Backoff
    | OtherElementsFirst
    | WaitingForMembers
    | WaitingForGroup
    | NoNodeMatches
    | NoNodeSatisfies
    | NotSchedulable
    | NeverFits
    | QueueLimit
    | QueueQuota
    | BelowMinResources
    | WaitingForVictims
    | HeldBack
    | NotEnough
    | Fragmented
    | Gathering
    | AboveMinimum
)


def own_reason(job: Job, now: Micros) -> OnHold | After | Backoff | WaitingForMembers | None:
    """What in the job itself prevents a start now; None if only the cluster can."""
    if job.on_hold:
        return OnHold()
    pending = job.pending
    if pending is not None and pending.after:
        return After(pending.after)
    if pending is not None and pending.not_before > now:
        return Backoff(pending.not_before, pending.lost_because)
    return members_reason(job)


def members_reason(job: Job) -> WaitingForMembers | None:
    if job.members is None or not job.awaits_members:
        return None
    return WaitingForMembers(job.spec.size, job.members.needed)


#: Resources whose name is not already the unit.
_UNITS = {"gpu": "GPU", "cpu": "CPU", "slots": "slot"}


_GIB = 2**30
#: A longer number of bytes is rounded to GiB with one decimal.
_LONG_NUMBER = 6


def amount_in_words(resource: str, amount: int, *, unit: bool = True) -> str:
    """`16 GPUs`, `64Gi memory`; the number alone without its unit."""
    number = str(quantities.printed(resource, amount))
    if (
        resource == "memory" and amount > _GIB and len(number) > _LONG_NUMBER
    ):  # such as 31250000Ki, of 32G
        number = f"{amount / _GIB:.1f}Gi"
    if not unit:
        return number
    if resource in _UNITS:
        return f"{number} {_UNITS[resource]}{'' if number == '1' else 's'}"
    return f"{number} {resource}"


def unit_in_words(resource: str) -> str:
    """`GPU`, `CPU`, `memory`: a resource before another noun."""
    return _UNITS.get(resource, resource)


def resource_in_words(resource: str) -> str:
    """`GPUs`, `CPUs`, `memory`: a resource of which there is some amount."""
    return f"{_UNITS[resource]}s" if resource in _UNITS else resource


def shortage_in_words(resource: str) -> str:
    return f"short of {resource_in_words(resource)}"


def _closed(nodes: dict[str, str]) -> str:
    """` (w-1 is cordoned, w-2 is lost)`; empty if there are none."""
    return f" ({', '.join(f'{name} is {why}' for name, why in nodes.items())})" if nodes else ""


def _have(names: tuple[str, ...]) -> str:
    return "has" if len(names) == 1 else "have"
