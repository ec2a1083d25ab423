"""The cluster at a glance: what is used, what is pending and why, what was lost."""

import heapq
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get
from litestar.params import QueryParameter

from phalanx.api.auth import USERS, principal_of
from phalanx.api.cost_views import tally_view
from phalanx.api.services import Services, services_of
from phalanx.api.views import reason_of, reason_view
from phalanx.api.visibility import visible_reason
from phalanx.api.worker_views import worker_status
from phalanx.core.gang import Gang
from phalanx.core.ledger import Tally
from phalanx.core.node import DEVICE
from phalanx.core.spec import quantities
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros
from phalanx.engine.turn import Turn
from phalanx.engine.usage_history import DAY, UsageCounts, UsageSample, count_usage
from phalanx.identity.principal import Principal
from phalanx.plan.model import PendingGang
from phalanx.plan.state.planner_state import PlannerState
from phalanx.wire.overview import OverviewView, PendingJobView, UsagePoint, UsageView
from phalanx.wire.times import iso_time, iso_time_or_none

_PENDING_SHOWN = 12
#: The first pending jobs of all namespaces, of which those that a caller may see are shown.
_PENDING_READ = 500
_CLOSED_SHOWN = 8
_NEVER = 2**62


class _Workers(msgspec.Struct, frozen=True):
    statuses: Counter[str]
    closed: tuple[str, ...]


class _Overview(msgspec.Struct, frozen=True):
    counts: UsageCounts
    workers: _Workers
    #: The first pending gangs, each with its reserved start.
    first: tuple[tuple[Gang, Micros | None], ...]


@get("/overview", opt={"allowed": USERS}, summary="Show the cluster at a glance")
async def overview(request: Request[Any, Any, Any]) -> OverviewView:
    """At most a second old."""
    services = services_of(request)
    seen = await services.snapshots.ask(_overview)
    counts, workers = seen.counts, seen.workers
    await services.usage.load()
    now = services.clock()
    samples = services.usage.since(now - DAY)
    evicted, failed = _lost(samples)
    return OverviewView(
        at=iso_time(now),
        gpus=counts.gpus / DEVICE,
        used_gpus=counts.used_gpus / DEVICE,
        mean_used_share=_mean_share(samples),
        running=counts.running,
        running_tasks=counts.tasks,
        pending=counts.pending,
        oldest_pending_at=iso_time_or_none(counts.oldest_pending_at),
        ended=dict(services.usage.ended_since(now - DAY)),
        evicted=tally_view(evicted),
        failed=tally_view(failed),
        workers=dict(workers.statuses),
        closed_workers=workers.closed,
        first_pending=await _pending_views(services, principal_of(request), seen.first),
    )


def _overview(state: PlannerState, now: Micros) -> _Overview:
    return _Overview(count_usage(state, now), _count_workers(state), _first_pending(state))


def _count_workers(state: PlannerState) -> _Workers:
    statuses = {name: worker_status(node) for name, node in state.nodes.items()}
    counted = Counter({"active": 0, "cordoned": 0, "leaving": 0, "lost": 0})
    counted.update(statuses.values())
    closed = sorted(name for name, status in statuses.items() if status != "active")
    return _Workers(counted, tuple(closed[:_CLOSED_SHOWN]))


def _first_pending(state: PlannerState) -> tuple[tuple[Gang, Micros | None], ...]:
    """Those with a reserved start first, then by priority and age."""
    starts = {start.job: start.at for start in state.reserved_starts}
    started, pending = set(state.running.by_job), state.pending.gangs

    def key(gang: PendingGang) -> tuple[int, int, Micros, str]:
        at = starts.get(gang.job, _NEVER)
        return (_NEVER - 1 if at is None else at, -gang.priority, gang.created_at, gang.job)

    # A key for each of all pending gangs would take most of the time.
    first = heapq.nsmallest(
        _PENDING_READ,
        [(-g.priority, g.created_at, job) for job, g in pending.items() if job not in started],
    )
    reserved = [job for job in starts if job in pending and job not in started]
    jobs = {*reserved, *(job for *_, job in first)}
    gangs = sorted((pending[job] for job in jobs), key=key)[:_PENDING_READ]
    return tuple((state.gangs[gang.job], starts.get(gang.job)) for gang in gangs)


async def _pending_views(
    services: Services, principal: Principal, first: tuple[tuple[Gang, Micros | None], ...]
) -> tuple[PendingJobView, ...]:
    seen = [(gang, at) for gang, at in first if principal.may_see(gang.job.spec.namespace)][
        :_PENDING_SHOWN
    ]

    def work(turn: Turn) -> tuple[PendingJobView, ...]:
        return tuple(_pending_view(services, turn, principal, gang, at) for gang, at in seen)

    return await services.engine.do(work)


def _pending_view(
    services: Services, turn: Turn, principal: Principal, gang: Gang, starts_at: Micros | None
) -> PendingJobView:
    job, spec = gang.job, gang.job.spec
    reason = reason_of(gang, services.engine.reasons, turn.now)
    return PendingJobView(
        job=job.id,
        name=job.full_name,
        queue=spec.queue,
        size=spec.size,
        priority=job.priority,
        since=iso_time(job.created_at),
        resources=quantities.native(spec.roles[0].resources) if spec.roles else {},
        reason=reason_view(visible_reason(principal, reason, turn.cluster.gangs)),
        starts_at=iso_time_or_none(starts_at),
    )


def _mean_share(samples: list[UsageSample]) -> float | None:
    shares = [sample.used_gpus / sample.gpus for sample in samples if sample.gpus]
    return sum(shares) / len(shares) if shares else None


def _lost(samples: list[UsageSample]) -> tuple[Tally, Tally]:
    """What was lost between the first and the last sample: to evictions, and to failures."""
    if not samples:
        return Tally(), Tally()
    first, last = samples[0], samples[-1]
    return _less(last.evicted, first.evicted), _less(last.failed, first.failed)


def _less(after: Tally, before: Tally) -> Tally:
    return Tally(after.gpu - before.gpu, after.cost - before.cost, after.count - before.count)


Window = Annotated[
    Literal["hour", "day"],
    QueryParameter(required=False, description="`hour` (the default) or `day`."),
]
_STEPS = {"hour": (HOUR, MINUTE), "day": (DAY, 5 * MINUTE)}


@get("/usage", opt={"allowed": USERS}, summary="Show how the cluster was used")
async def usage(request: Request[Any, Any, Any], window: Window = "hour") -> UsageView:
    """GPUs in use, and running and pending gangs, over the last hour or day. Oldest first."""
    services = services_of(request)
    services.engine.check_leading()
    await services.usage.load()
    length, step = _STEPS[window]
    slots: dict[int, list[UsageSample]] = {}
    for sample in services.usage.since(services.clock() - length):
        slots.setdefault(sample.at // step, []).append(sample)
    return UsageView(step // SECOND, tuple(_point(each) for each in slots.values()))


def _point(samples: list[UsageSample]) -> UsagePoint:
    count = len(samples)
    return UsagePoint(
        at=iso_time(samples[-1].at),
        gpus=sum(each.gpus for each in samples) / count / DEVICE,
        used_gpus=sum(each.used_gpus for each in samples) / count / DEVICE,
        running=sum(each.running for each in samples) / count,
        pending=sum(each.pending for each in samples) / count,
    )


ROUTES = [overview, usage]
