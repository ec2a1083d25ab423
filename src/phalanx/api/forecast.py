"""What a plan holds for one job: made beside the loop, from a copy of the cluster, and not kept."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.api.auth import Principal
from phalanx.api.services import Services
from phalanx.core.cluster import Cluster
from phalanx.core.lost_work import lost_work, money
from phalanx.core.node import GPU
from phalanx.core.reasons import NeverFits, NoNodeMatches
from phalanx.core.spec.durations import printed as lasting
from phalanx.core.spec.job import SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import PlannedVictim
from phalanx.plan.explain.whatif import (
    Alternative,
    BeyondShare,
    Fewer,
    Forecast,
    Higher,
    Shorter,
    alternatives,
    beyond_share,
    forecast,
)
from phalanx.plan.model import PlannerPolicy
from phalanx.plan.state.planner_state import PlannerState
from phalanx.wire.plan import AlternativeView, PlannedTask, VictimView
from phalanx.wire.times import iso_time

#: So many workers or jobs are named in a sentence.
_NAMED = 5


class JobForecast(NamedTuple):
    cluster: Cluster  #: the copy that was planned with
    now: Micros
    forecast: Forecast
    beyond_share: BeyondShare | None
    alternatives: tuple[Alternative, ...]


async def outlook(services: Services, cluster: Cluster, job: str, now: Micros) -> JobForecast:
    """What becomes of a job of the cluster, which is a copy."""
    return await asyncio.to_thread(_look, cluster, services.engine.settings.policy, job, now)


def _look(cluster: Cluster, policy: PlannerPolicy, job: str, now: Micros) -> JobForecast:
    state = PlannerState.of(cluster, policy)
    found = forecast(plan(state, now), job)
    tried: tuple[Alternative, ...] = ()
    beyond = None
    if not found.places:
        beyond = beyond_share(state.at(now), job)
        stop = cluster.settings.stop_timeout(cluster.gangs[job].job.spec.grace)
        tried = tuple(alternatives(state, job, now, stop))
    return JobForecast(cluster, now, found, beyond, tried)


def placement_views(found: Forecast) -> tuple[PlannedTask, ...]:
    return tuple(PlannedTask(place.task, place.worker) for place in found.places)


def start_view(found: Forecast) -> str | None:
    return None if found.head is None or found.head.at is None else iso_time(found.head.at)


def victim_views(
    seen: JobForecast, victims: Iterable[PlannedVictim], principal: Principal
) -> tuple[VictimView, ...]:
    return tuple(_victim_view(seen, victim, principal) for victim in victims)


def _victim_view(seen: JobForecast, victim: PlannedVictim, principal: Principal) -> VictimView:
    gang = seen.cluster.gangs[victim.job]
    taken = [t for t in gang.started() if not victim.tasks or t.index in victim.tasks]
    work = lost_work(gang, seen.now, taken)
    visible = principal.may_see(gang.job.spec.namespace)
    return VictimView(
        gpu_s=work.get(GPU, 0) / (1000 * SECOND),
        cost=money(work, seen.cluster.settings.price) / 1_000_000,
        job=victim.job if visible else None,
        name=gang.job.full_name if visible else None,
        tasks=victim.tasks,
    )


def alternative_views(seen: JobForecast, principal: Principal) -> tuple[AlternativeView, ...]:
    return tuple(_alternative_view(seen, tried, principal) for tried in seen.alternatives)


def _alternative_view(
    seen: JobForecast, tried: Alternative, principal: Principal
) -> AlternativeView:
    kind = type(tried).__name__
    match tried:
        case Fewer(tasks, of):
            told = f"with {tasks} of its {of} tasks it would start now"
            return AlternativeView(kind, told, tasks=tasks)
        case Shorter(limit):
            told = f"with a time limit of {lasting(limit)} it would start now"
            return AlternativeView(kind, told, time_limit_s=limit / SECOND)
        case Higher(priority, given):
            victims = victim_views(seen, given, principal)
            told = f"with a priority of {priority} it would evict {evicting(victims)}"
            return AlternativeView(kind, told, priority=priority, victims=victims)


def message(seen: JobForecast, principal: Principal) -> str:
    """What would become of the job, in one sentence."""
    found = seen.forecast
    places = f"{len(found.places)} task" + ("s" if len(found.places) > 1 else "")
    if found.starts_now:
        return f"it would start now, with {places} on {listed(p.worker for p in found.places)}"
    if found.victims:
        gone = evicting(victim_views(seen, found.victims, principal))
        return f"it would evict {gone}, and start when they have stopped"
    reason = found.reason
    if isinstance(reason, NeverFits | NoNodeMatches):
        return f"it would never start: {reason}"
    if found.holds:
        return f"it would hold places for {places} and wait for the rest: {reason}"
    if found.places:
        return f"it would start, with {places}, when what is leaving has left"
    at = start_view(found)
    when = "" if at is None else f" until about {at[:16].replace('T', ' ')} UTC"
    return f"it would wait{when}" + (" for the next plan" if reason is None else f": {reason}")


def evicting(victims: Iterable[VictimView]) -> str:
    """`ml/train and 2 tasks of ml/tune, losing 3.2 GPU-hours ($11.20)`."""
    gone = list(victims)
    names = listed(_gives(victim) for victim in gone)
    lost, cost = sum(v.gpu_s for v in gone), sum(v.cost for v in gone)
    price = f" (${cost:.2f})" if cost else ""
    told = f"{lost / 3600:.1f} GPU-hours" if lost >= 3600 else f"{lost:.0f} GPU-seconds"
    return names + (f", losing {told}{price}" if lost else "")


def _gives(victim: VictimView) -> str:
    name = victim.name or "a job of another namespace"
    count = len(victim.tasks)
    return name if not count else f"{count} task{'s' if count > 1 else ''} of {name}"


def listed(names: Iterable[str]) -> str:
    """Each once, and not too many."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) <= _NAMED:
        return ", ".join(distinct)
    return ", ".join(distinct[:_NAMED]) + f" and {len(distinct) - _NAMED} more"
