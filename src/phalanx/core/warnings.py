"""What a user should know about a job that is accepted all the same: typed, a sentence each."""

from collections.abc import Mapping

import msgspec

from phalanx.core.ledger import DAY, DAYS_KEPT, Account
from phalanx.core.lost_work import money
from phalanx.core.model import Queue
from phalanx.core.node import GPU
from phalanx.core.reasons import NeverFits, NoNodeMatches
from phalanx.core.spec.job import HOUR, CheckpointPolicy, JobSpec, Micros, Resources
from phalanx.core.spec.quantities import printed


class AboveLimit(msgspec.Struct, frozen=True, tag=True):
    """Not even alone in its queue could it start."""

    queue: str
    resource: str
    want: int
    limit: int

    def __str__(self) -> str:
        want, limit = printed(self.resource, self.want), printed(self.resource, self.limit)
        return f"it needs {want} {self.resource}, and queue {self.queue} may use {limit} at most"


Unfit = NeverFits | NoNodeMatches | AboveLimit


class WillNotStart(msgspec.Struct, frozen=True, tag=True):
    why: Unfit

    def __str__(self) -> str:
        return f"it cannot start as things are: {self.why}"


class PreemptionRisk(msgspec.Struct, frozen=True, tag=True):
    queue: str
    because: str
    evictions: int  #: in the queue, over the last 7 days

    def __str__(self) -> str:
        times = {0: "no eviction", 1: "1 eviction"}.get(
            self.evictions, f"{self.evictions} evictions"
        )
        return (
            "this job is low-priority; higher-priority jobs may preempt it: "
            f"{self.because} ({times} in queue {self.queue} over the last {DAYS_KEPT} days)"
        )


class NoCheckpoint(msgspec.Struct, frozen=True, tag=True):
    gpus: float
    hours: float | None  #: its time limit
    cost: float  #: the most that one eviction can lose; without a limit, that of an hour

    def __str__(self) -> str:
        price = f"${self.cost:.2f}" if self.cost else ""
        worth = price
        if self.gpus:
            told = f" ({price})" if price else ""
            worth = f"{self.gpus * (self.hours or 1):g} GPU-hours{told}"
        most = "all it did since its start"
        if worth:
            most = f"{most}, {worth} for every hour" if self.hours is None else f"up to {worth}"
        return (
            f"it declares no checkpoint: an eviction can lose {most}; "
            "declare checkpoint, or report what is safe"
        )


AnyWarning = WillNotStart | PreemptionRisk | NoCheckpoint


class Standing(msgspec.Struct, frozen=True):
    """How things are for a queue's next job."""

    now: Micros
    classes: Mapping[str, int]
    prices: Mapping[str, int]
    queue: Queue
    is_alone: bool  #: there is no other queue
    usage: Resources  #: of the queue
    account: Account


def risks(spec: JobSpec, standing: Standing) -> list[AnyWarning]:
    because = _threat(spec, standing) if spec.preemptible else None
    if because is None:
        return []
    first_day = standing.now // DAY - DAYS_KEPT + 1
    evictions = standing.account.evictions_since(first_day)
    found: list[AnyWarning] = [PreemptionRisk(spec.queue, because, evictions)]
    limit = spec.time_limit
    if spec.checkpoint is CheckpointPolicy.NONE and (limit is None or limit > HOUR):
        found.append(_at_stake(spec, standing.prices))
    return found


def _threat(spec: JobSpec, standing: Standing) -> str | None:
    """What may take its place away."""
    above = {name: rank for name, rank in standing.classes.items() if rank > spec.priority}
    if above:
        highest = max(above, key=lambda name: (above[name], name))
        return f"there is the priority class {highest}"
    quota = standing.queue.quota
    if not quota:
        return None if standing.is_alone else f"queue {spec.queue} has no quota"
    for name, needed in _needs(spec).items():
        if name in quota and standing.usage.get(name, 0) + needed > quota[name]:
            return f"queue {spec.queue} would run above its quota of {name}"
    return None


def above_limit(spec: JobSpec, queues: Mapping[str, Queue]) -> AboveLimit | None:
    """The limit, of its queue or of one above that, which its minimum does not keep."""
    queue = queues.get(spec.queue)
    while queue is not None:
        for name, limit in queue.limit.items():
            want = _least(spec, name)
            if want > limit:
                return AboveLimit(queue.name, name, want, limit)
        queue = queues.get(queue.parent) if queue.parent is not None else None
    return None


def _least(spec: JobSpec, resource: str) -> int:
    """With fewer it does not start."""
    asked = [role.resources.get(resource, 0) for role in spec.roles]
    rest = spec.min_available - sum(role.min for role in spec.roles)
    return sum(a * role.min for a, role in zip(asked, spec.roles, strict=True)) + rest * min(asked)


def _at_stake(spec: JobSpec, prices: Mapping[str, int]) -> NoCheckpoint:
    needs, limit = _needs(spec), spec.time_limit
    span = limit or HOUR
    cost = money({name: amount * span for name, amount in needs.items()}, prices)
    hours = None if limit is None else limit / HOUR
    return NoCheckpoint(needs.get(GPU, 0) / 1000, hours, round(cost / 1_000_000, 2))


def _needs(spec: JobSpec) -> Resources:
    """What all of its tasks ask for together."""
    needs: Resources = {}
    for role in spec.roles:
        for name, amount in role.resources.items():
            needs[name] = needs.get(name, 0) + amount * role.replicas
    return needs
