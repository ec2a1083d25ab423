"""Views of a forecast: where and when a job would start, what it would evict, and what would help.

Victims in namespaces that the caller may not see have no names.
"""

from collections.abc import Iterable, Mapping

from phalanx.core.gang import Gang
from phalanx.core.lost_work import money, work_at_risk
from phalanx.core.node import GPU
from phalanx.core.reasons import NeverFits, NoNodeMatches, QueueLimit, QueueQuota
from phalanx.core.spec.durations import printed as printed_duration
from phalanx.core.text import listed
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.forecast import JobForecast
from phalanx.identity.principal import Principal
from phalanx.plan.decisions import PlannedVictim
from phalanx.plan.explain.due_times import DueTimes
from phalanx.plan.explain.whatif import Alternative, Fewer, Forecast, Higher, Shorter, WithMoves
from phalanx.wire.plan import AlternativeView, PlannedTask, QueueDueView, VictimView
from phalanx.wire.times import iso_time


def placement_views(forecast: Forecast) -> tuple[PlannedTask, ...]:
    return tuple(PlannedTask(place.task, place.worker) for place in forecast.places)


def start_view(forecast: Forecast) -> str | None:
    """The reserved start time."""
    start = forecast.reserved_start
    return None if start is None or start.at is None else iso_time(start.at)


def due_views(due: DueTimes | None) -> tuple[QueueDueView, ...]:
    return tuple(
        QueueDueView(
            each.queue,
            iso_time(each.at),
            None if each.used_share is None else round(each.used_share, 3),
            round(each.counted_share, 3),
        )
        for each in (() if due is None else due.queues)
    )


def victim_views(
    seen: JobForecast, victims: Iterable[PlannedVictim], principal: Principal
) -> tuple[VictimView, ...]:
    price = seen.settings.price
    return tuple(
        victim_view(seen.state.gangs[victim.job], victim, seen.now, price, principal)
        for victim in victims
    )


def victim_view(
    gang: Gang,
    victim: PlannedVictim,
    now: Micros,
    price: Mapping[str, int],
    principal: Principal,
) -> VictimView:
    tasks = [task for task in gang.started() if not victim.tasks or task.index in victim.tasks]
    work = work_at_risk(gang, now, tasks)
    visible = principal.may_see(gang.job.spec.namespace)
    return VictimView(
        gpu_s=work.get(GPU, 0) / (1000 * SECOND),
        cost=money(work, price) / 1_000_000,
        job=victim.job if visible else None,
        name=gang.job.full_name if visible else None,
        tasks=victim.tasks,
    )


def alternative_views(seen: JobForecast, principal: Principal) -> tuple[AlternativeView, ...]:
    return tuple(_alternative_view(seen, each, principal) for each in seen.alternatives)


def _alternative_view(
    seen: JobForecast, alternative: Alternative, principal: Principal
) -> AlternativeView:
    kind = type(alternative).__name__
    match alternative:
        case Fewer(tasks, of):
            message = f"with {tasks} of {of} tasks, the job would start now"
            return AlternativeView(kind, message, tasks=tasks)
        case Shorter(limit):
            message = f"with a time limit of {printed_duration(limit)}, the job would start now"
            return AlternativeView(kind, message, time_limit_s=limit / SECOND)
        case Higher(priority, planned):
            victims = victim_views(seen, planned, principal)
            message = f"with priority {priority}, the job would evict {victims_in_words(victims)}"
            return AlternativeView(kind, message, priority=priority, victims=victims)
        case WithMoves(gangs, queue):
            moved = "1 gang is moved" if gangs == 1 else f"{gangs} gangs are moved"
            message = f"fits if {moved}; queue {queue} does not allow consolidation"
            return AlternativeView(kind, message)


def message(seen: JobForecast, principal: Principal) -> str:
    """What would happen to the job, in one sentence."""
    found = seen.forecast
    reason = found.reason
    tasks = _tasks(len(found.places))
    if found.starts_now:
        return f"the job would start now: {tasks} on {listed_once(p.worker for p in found.places)}"
    if found.moves:
        moved = victims_in_words(victim_views(seen, found.victims, principal))
        return f"the job would start when gangs have been moved to other workers: {moved}"
    if found.victims:
        victims = victims_in_words(victim_views(seen, found.victims, principal))
        return f"the job would evict {victims}, and start when the evicted tasks have stopped"
    if found.gathers:
        return f"the job would gather {tasks} and stay pending: {reason}"
    if found.places:
        return f"the job would start with {tasks} when stopping tasks have freed their places"
    return f"the job would {_pending_in_words(found)}"


def _pending_in_words(forecast: Forecast) -> str:
    reason = forecast.reason
    if isinstance(reason, NeverFits) and not reason.closed:
        return f"never start: {reason.shortfall}"
    if isinstance(reason, NoNodeMatches) and not reason.closed:
        return f"never start: {reason}"
    if isinstance(reason, QueueLimit | QueueQuota) and reason.want is not None:
        return f"never start: {reason}"
    pending = "be queued for the next plan" if reason is None else f"be pending: {reason}"
    at = start_view(forecast)
    return pending if at is None else f"{pending}; reserved start {at[:16].replace('T', ' ')} UTC"


def victims_in_words(victims: Iterable[VictimView]) -> str:
    """`ml/train, 2 tasks of ml/tune, losing 3.2 GPU-hours of work ($11.20)`."""
    views = list(victims)
    names = listed_once(_victim_in_words(victim) for victim in views)
    lost_s, cost = sum(v.gpu_s for v in views), sum(v.cost for v in views)
    price = f" (${cost:.2f})" if cost else ""
    work = f"{lost_s / 3600:.1f} GPU-hours" if lost_s >= 3600 else f"{lost_s:.0f} GPU-seconds"
    return names + (f", losing {work} of work{price}" if lost_s else "")


def _victim_in_words(victim: VictimView) -> str:
    name = victim.name or "a job of another namespace"
    return name if not victim.tasks else f"{_tasks(len(victim.tasks))} of {name}"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def listed_once(names: Iterable[str]) -> str:
    """Each name once, and not too many of them."""
    return listed(list(dict.fromkeys(names)))
