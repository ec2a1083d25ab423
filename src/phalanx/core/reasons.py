"""Why a job waits: typed values, the same everywhere they are shown, each one sentence in words.

Listed in order of precedence. The first ones follow from the job alone; the planner adds the rest.
"""

from datetime import UTC, datetime

import msgspec

from phalanx.core.gang import Gang
from phalanx.core.model import Job
from phalanx.core.spec import quantities
from phalanx.core.spec.job import Micros


class OnHold(msgspec.Struct, frozen=True, tag=True):
    def __str__(self) -> str:
        return "an operator has put it on hold"


class QueueStopped(msgspec.Struct, frozen=True, tag=True):
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is stopped"


class After(msgspec.Struct, frozen=True, tag=True):
    jobs: tuple[str, ...]

    def __str__(self) -> str:
        return f"it starts after {_listed(self.jobs)}"


class Backoff(msgspec.Struct, frozen=True, tag=True):
    until: Micros

    def __str__(self) -> str:
        return f"it failed or could not start, and is tried again at {_clock(self.until)}"


class WaitingForMembers(msgspec.Struct, frozen=True, tag=True):
    seen: int
    of: int | None  #: None as long as nobody has said it
    uncounted: int = 0  #: run or are done, which its match policy does not count

    def __str__(self) -> str:
        if self.uncounted:
            others = f"the {self.uncounted} that run or are done do not count"
            return f"it starts with {self.of} members, but only {self.seen} wait, and {others}"
        if self.of is None:
            have = "member has" if self.seen == 1 else "members have"
            return f"{self.seen} {have} been submitted, and its PodGroup is missing"
        return f"{self.seen} of {self.of} members have been submitted"


class WaitingForGroup(msgspec.Struct, frozen=True, tag=True):
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"its group is not complete without {_listed(self.missing)}"


class NoNodeMatches(msgspec.Struct, frozen=True, tag=True):
    selector: dict[str, str]

    def __str__(self) -> str:
        wanted = ", ".join(f"{label}={value}" for label, value in sorted(self.selector.items()))
        return f"no worker has {wanted}"


class NeverFits(msgspec.Struct, frozen=True, tag=True):
    short_of: str  #: the resource
    want: int
    largest: int  #: the most that the empty cluster could give in the same place

    def __str__(self) -> str:
        if self.short_of == "slots" and not self.largest:
            return "no worker is open that could take it"
        want, largest = _amount(self.short_of, self.want), _amount(self.short_of, self.largest)
        return f"it does not fit the cluster as it is: it needs {want}, and {largest} is the most"


class QueueLimit(msgspec.Struct, frozen=True, tag=True):
    queue: str
    resource: str

    def __str__(self) -> str:
        return f"queue {self.queue} is at its limit of {self.resource}"


class WaitingForVictims(msgspec.Struct, frozen=True, tag=True):
    tasks: tuple[str, ...]

    def __str__(self) -> str:
        have = "has" if len(self.tasks) == 1 else "have"
        return f"it starts when {_listed(self.tasks)} {have} stopped"


class HeldBack(msgspec.Struct, frozen=True, tag=True):
    for_job: str
    until: Micros | None

    def __str__(self) -> str:
        when = "" if self.until is None else f", which is to start at {_clock(self.until)}"
        return f"it would delay {self.for_job}{when}"


class NotEnough(msgspec.Struct, frozen=True, tag=True):
    want: int  #: tasks of the minimum
    fits: int
    short_of: str

    def __str__(self) -> str:
        return f"there is room for {self.fits} of {self.want} tasks; {self.short_of} is short"


class Fragmented(msgspec.Struct, frozen=True, tag=True):
    domain: str  #: what it has to fit into: `node`, or the label it is packed by
    best: int  #: how many of its tasks the best one holds

    def __str__(self) -> str:
        return f"enough is free in sum, but no {self.domain} has it: the best holds {self.best}"


Reason = (
    OnHold
    | QueueStopped
    | After
    | Backoff
    | WaitingForMembers
    | WaitingForGroup
    | NoNodeMatches
    | NeverFits
    | QueueLimit
    | WaitingForVictims
    | HeldBack
    | NotEnough
    | Fragmented
)


def own_reason(gang: Gang, now: Micros) -> OnHold | After | Backoff | WaitingForMembers | None:
    """Why the job itself may not be placed now; None if only the cluster can stand in its way."""
    job = gang.job
    if job.on_hold:
        return OnHold()
    if job.waits_for:
        return After(job.waits_for)
    if job.not_before > now:
        return Backoff(job.not_before)
    return members_reason(job)


def members_reason(job: Job) -> WaitingForMembers | None:
    if job.gathering is None or not job.awaits_members:
        return None
    return WaitingForMembers(job.spec.size, job.gathering.of)


def _clock(at: Micros) -> str:
    return datetime.fromtimestamp(at / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _amount(resource: str, count: int) -> str:
    return f"{quantities.printed(resource, count)} {resource}"


def _listed(names: tuple[str, ...], at_most: int = 5) -> str:
    if len(names) <= at_most:
        return ", ".join(names)
    return ", ".join(names[:at_most]) + f" and {len(names) - at_most} more"
