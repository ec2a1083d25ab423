"""Warnings about a job that is accepted nevertheless: typed values with one sentence each."""

from collections.abc import Mapping

import msgspec

from phalanx.core.ledger import DAY, DAYS_KEPT, Account
from phalanx.core.lost_work import money
from phalanx.core.model import Queue
from phalanx.core.node import GPU
from phalanx.core.reasons import NeverFits, NoNodeMatches, amount_in_words
from phalanx.core.spec.job import CheckpointPolicy, JobSpec, Resources
from phalanx.core.time_units import HOUR, Micros


class AboveLimit(msgspec.Struct, frozen=True, tag=True):
    """The job's minimum exceeds the limit of its queue or of a queue above it."""

    queue: str
    resource: str
    want: int
    limit: int

    def __str__(self) -> str:
        want = amount_in_words(self.resource, self.want)
        limit = amount_in_words(self.resource, self.limit, unit=False)
        return f"the gang needs {want}, the limit of queue {self.queue} is {limit}"


Unfit = NeverFits | NoNodeMatches | AboveLimit


class WillNotStart(msgspec.Struct, frozen=True, tag=True):
    why: Unfit

    def __str__(self) -> str:
        why = self.why.shortfall if isinstance(self.why, NeverFits) else self.why
        return f"this job will not start: {why}"


class PreemptionRisk(msgspec.Struct, frozen=True, tag=True):
    queue: str
    because: str  #: which rule allows it
    evictions: int  #: in the queue, over the last 7 days

    def __str__(self) -> str:
        times = {0: "no eviction", 1: "1 eviction"}.get(
            self.evictions, f"{self.evictions} evictions"
        )
        return (
            "this job is low-priority; higher-priority jobs may preempt it: "
            f"{self.because} ({times} in queue {self.queue} in the last {DAYS_KEPT} days)"
        )


class NoCheckpoint(msgspec.Struct, frozen=True, tag=True):
    gpus: float
    hours: float | None  #: its time limit
    cost: float  #: the most that one eviction can lose; without a time limit, per hour

    def __str__(self) -> str:
        price = f"${self.cost:.2f}" if self.cost else ""
        worth = price
        if self.gpus:
            in_money = f" ({price})" if price else ""
            worth = f"{self.gpus * (self.hours or 1):g} GPU-hours{in_money}"
        most = "all work since the start"
        if worth:
            most = f"{most}, {worth} per hour" if self.hours is None else f"up to {worth}"
        return (
            f"no checkpoint declared: an eviction can lose {most}; "
            "set `checkpoint`, or report saved work with task.progress(step, checkpoint=True)"
        )


class BeyondTotal(msgspec.Struct, frozen=True, tag=True):
    members: int
    total: int  #: how many members the gang was said to have in all

    def __str__(self) -> str:
        return (
            f"this gang has {self.members} members, more than its total-number of {self.total}; "
            "all of them are scheduled"
        )


AnyWarning = BeyondTotal | WillNotStart | PreemptionRisk | NoCheckpoint


class Standing(msgspec.Struct, frozen=True):
    """The situation of a queue when a job is submitted to it."""

    now: Micros
    classes: Mapping[str, int]  #: priority classes by name
    prices: Mapping[str, int]
    queue: Queue
    is_alone: bool  #: there is no other queue
    usage: Resources  #: what the queue uses now
    account: Account


def risks(spec: JobSpec, standing: Standing) -> list[AnyWarning]:
    """The warnings about evictions: whether one is possible, and what it can cost."""
    because = _threat(spec, standing) if spec.preemptible else None
    if because is None:
        return []
    first_day = standing.now // DAY - DAYS_KEPT + 1
    evictions = standing.account.preemptions_since(first_day)
    warnings: list[AnyWarning] = [PreemptionRisk(spec.queue, because, evictions)]
    limit = spec.time_limit
    if spec.checkpoint is CheckpointPolicy.NONE and (limit is None or limit > HOUR):
        warnings.append(_at_stake(spec, standing.prices))
    return warnings


def _threat(spec: JobSpec, standing: Standing) -> str | None:
    """The rule under which the job can be evicted; None if there is none."""
    above = {name: rank for name, rank in standing.classes.items() if rank > spec.priority}
    if above:
        highest = max(above, key=lambda name: (above[name], name))
        return f"priority class {highest} ranks above it"
    quota = standing.queue.quota
    if not quota:
        return None if standing.is_alone else f"queue {spec.queue} has no quota"
    for name, needed in _needs(spec).items():
        if name in quota and standing.usage.get(name, 0) + needed > quota[name]:
            return f"queue {spec.queue} would exceed its {name} quota"
    return None


def above_limit(spec: JobSpec, queues: Mapping[str, Queue]) -> AboveLimit | None:
    """The first limit, of its queue or a queue above it, that the job's minimum exceeds."""
    queue = queues.get(spec.queue)
    while queue is not None:
        for name, limit in queue.limit.items():
            want = _least(spec, name)
            if want > limit:
                return AboveLimit(queue.name, name, want, limit)
        queue = queues.get(queue.parent) if queue.parent is not None else None
    return None


def _least(spec: JobSpec, resource: str) -> int:
    """The least amount of a resource with which the job can start."""
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
    """The requests of all tasks, summed."""
    needs: Resources = {}
    for role in spec.roles:
        for name, amount in role.resources.items():
            needs[name] = needs.get(name, 0) + amount * role.replicas
    return needs
