"""Preemption: victims are evicted, and their capacity is kept for the preemptor.

The nomination of the preemptor and all evictions for it are one change. If the preemptor does not
start in time, the capacity is released, and for a while no job is evicted for it again.
"""

from phalanx.core import causes
from phalanx.core.causes import Cause
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Nominated, NominationEnded, Victim
from phalanx.core.gang import Gang
from phalanx.core.handlers.startable import check_startable
from phalanx.core.handlers.stop import evict, restart_at, shrink
from phalanx.core.model import Job, Nomination
from phalanx.core.records import CapacityKept, KeptCapacityReleased
from phalanx.core.states import State
from phalanx.core.time_units import Micros


def nominated(tx: Changes, event: Nominated) -> None:
    preemptors = [tx.gang(placement.job) for placement in event.placements]
    for gang, placement in zip(preemptors, event.placements, strict=True):
        check_startable(tx, gang, placement.version)
        if gang.job.pending is not None and gang.job.pending.nomination is not None:
            raise Conflict(f"capacity is already kept for job {gang.job.id}")
    preemptor = preemptors[0].job
    moves = {placement.job: placement.assignments for placement in event.moves}
    stopping: list[str] = []
    # Without victims, the capacity comes from tasks that were stopping already.
    stop_timeout: Micros = tx.base.settings.stop_floor
    for victim in event.victims:
        gang = tx.gang(victim.job)
        _check_victim(tx, gang, victim)
        cause = _eviction(gang, preemptor)
        if victim.job in moves:
            nodes = list(dict.fromkeys(place.worker for place in moves[victim.job]))
            cause = causes.moved(nodes, preemptor.full_name, victim.lost)
        stopping += _evict(tx, gang, victim, cause, moved=victim.job in moves)
        stop_timeout = max(stop_timeout, tx.base.settings.stop_timeout(gang.job.spec.grace))
    until = tx.now + stop_timeout + tx.base.settings.nomination
    for job, places in moves.items():
        restart_at(tx, tx.gang(job), Nomination(places, tx.now, until, tuple(stopping)))
    for gang, placement in zip(preemptors, event.placements, strict=True):
        nomination = Nomination(placement.assignments, tx.now, until, tuple(stopping))
        tx.set_pending(gang, nomination=nomination)
        tx.record(CapacityKept(gang.job.id, len(placement.assignments), tuple(stopping), until))
        tx.timer(until, NominationEnded(gang.job.id, tx.now))
    tx.replan = True


def _check_victim(tx: Changes, gang: Gang, victim: Victim) -> None:
    """Raise Conflict if the victim cannot be evicted, or is not as the plan has seen it."""
    job = gang.job
    # An earlier decision of the same plan may have shrunk it; otherwise it has not changed.
    shrunk_now = job.attempt is not None and job.attempt.shrunk_at == tx.now
    if job.version != victim.version and not shrunk_now:
        raise Conflict(f"victim {job.id} has changed since version {victim.version}")
    if not job.spec.preemptible:
        raise Conflict(f"victim {job.id} is not preemptible")


def _evict(tx: Changes, gang: Gang, victim: Victim, cause: Cause, *, moved: bool) -> list[str]:
    """Evict a victim, or its named tasks above its minimum. Returns the tasks that stop."""
    if victim.tasks:
        shrink(tx, gang, victim.tasks, cause)
    else:
        evict(tx, gang, cause, moved=moved)
    stopping = [task for task in gang.tasks if task.state is State.PREEMPTING]
    return [task.id for task in stopping if not victim.tasks or task.index in victim.tasks]


def _eviction(gang: Gang, preemptor: Job) -> Cause:
    job, by = gang.job, preemptor.full_name
    roles = list(dict.fromkeys(task.role for task in gang.tasks if task.place is not None))
    if job.spec.queue == preemptor.spec.queue:
        higher = preemptor.priority > job.priority
        return causes.preempted(roles, by, higher_priority=higher)
    return causes.reclaimed(roles, by, preemptor.spec.queue)


def nomination_ended(tx: Changes, event: NominationEnded) -> None:
    base = tx.base.gangs.get(event.job)
    pending = None if base is None else base.job.pending
    if pending is None or pending.nomination is None or pending.nomination.at != event.at:
        return
    unused = pending.unused_nominations + 1
    settings = tx.base.settings
    pause = min(settings.backoff_cap, settings.nomination << min(unused - 1, 32))
    tx.set_pending(
        tx.gang(event.job),
        nomination=None,
        unused_nominations=unused,
        evicts_from=tx.now + pause,
    )
    tx.record(KeptCapacityReleased(event.job))
    tx.replan = True
