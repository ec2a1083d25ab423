"""Evictions and the room they make, which is kept for the gang they were made for.

The claimant's nomination and all of its evictions are one change. The victims' shares are the
claimant's from then on; if it does not start in time, the room is free for all, and for a while
nobody is evicted for it again.
"""

from phalanx.core import causes
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.events import Evicted, Nominated, NominationEnded, Shrunk, Victim
from phalanx.core.gang import Gang
from phalanx.core.handlers.startable import check_startable
from phalanx.core.handlers.stop import evicted, shrunk
from phalanx.core.model import Job, Nomination
from phalanx.core.records import CapacityKept, KeptCapacityReleased
from phalanx.core.spec.job import Micros
from phalanx.core.states import State


def nominated(tx: Changes, event: Nominated) -> None:
    claimants = [tx.gang(placement.job) for placement in event.placements]
    for gang, placement in zip(claimants, event.placements, strict=True):
        check_startable(tx, gang, placement.version)
        if gang.job.nomination is not None:
            raise Conflict(f"job {gang.job.id} waits for its victims already")
    preemptor = claimants[0].job
    leaving: list[str] = []
    #: Room may also be left by those who were leaving already.
    patience: Micros = tx.base.settings.stop_floor
    for victim in event.victims:
        gang = tx.gang(victim.job)
        leaving += _evict(tx, gang, victim, preemptor)
        patience = max(patience, tx.base.settings.stop_timeout(gang.job.spec.grace))
    until = tx.now + patience + tx.base.settings.nomination
    for gang, placement in zip(claimants, event.placements, strict=True):
        nomination = Nomination(placement.assignments, tx.now, until, tuple(leaving))
        tx.set_job(gang, nomination=nomination)
        tx.record(CapacityKept(gang.job.id, len(placement.assignments), tuple(leaving), until))
        tx.timer(until, NominationEnded(gang.job.id, tx.now))
    tx.replan = True


def _evict(tx: Changes, gang: Gang, victim: Victim, preemptor: Job) -> list[str]:
    """Stop a victim, or what it has beyond its minimum; the tasks that are leaving."""
    job = gang.job
    # One that gave tasks to somebody else at the same time has not changed otherwise.
    if job.version != victim.version and job.shrunk_at != tx.now:
        raise Conflict(f"victim {job.id} has changed since version {victim.version}")
    if not job.spec.preemptible:
        raise Conflict(f"victim {job.id} is not preemptible")
    by = preemptor.full_name
    if victim.tasks:
        shrunk(tx, Shrunk(job.id, victim.tasks, by))
    else:
        queue = preemptor.spec.queue
        same_queue = job.spec.queue == queue
        why = causes.preempted(by) if same_queue else causes.reclaimed(by, queue)
        evicted(tx, Evicted(job.id, by, why))
    stopping = [task for task in gang.tasks if task.state is State.PREEMPTING]
    return [task.id for task in stopping if not victim.tasks or task.index in victim.tasks]


def nomination_ended(tx: Changes, event: NominationEnded) -> None:
    base = tx.base.gangs.get(event.job)
    if base is None or base.job.nomination is None or base.job.nomination.at != event.at:
        return
    gang = tx.gang(event.job)
    unused = gang.job.unused + 1
    settings = tx.base.settings
    pause = min(settings.backoff_cap, settings.nomination << min(unused - 1, 32))
    tx.set_job(gang, nomination=None, unused=unused, evicts_from=tx.now + pause)
    tx.record(KeptCapacityReleased(event.job))
    tx.replan = True
