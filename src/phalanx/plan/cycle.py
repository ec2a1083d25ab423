"""One pass over all that waits: in order, each gang whole or not at all, a reason for the rest.

Capacity only falls within a pass, so a shape that did not fit is not tried again in it. A gang that
has waited too long keeps the nodes it could use from those that come after it.
"""

from functools import partial

from phalanx.core.events import Placement
from phalanx.core.gang import Gang
from phalanx.core.model import Assignment, Phase
from phalanx.core.queues import stopped_by
from phalanx.core.reasons import Fragmented, NotEnough, QueueStopped, Reason, own_reason
from phalanx.core.schema import TASK_LIMIT
from phalanx.core.spec import Restart
from phalanx.plan.place import Room
from phalanx.plan.snapshot import Plan, Reserve, Snapshot
from phalanx.plan.why import Explainer


def plan(snapshot: Snapshot) -> Plan:
    room = Room(snapshot.nodes)
    explain = Explainer(room, snapshot.nodes)
    decisions: list[Reserve] = []
    reasons: dict[str, Reason] = {}
    starving = partial(_is_starving, snapshot)
    waiting = filter(_wants_a_place, snapshot.gangs.values())
    for gang in sorted(waiting, key=lambda gang: _order(gang, starving=starving(gang))):
        job = gang.job
        own = _own_reason(gang, snapshot)
        if own is not None:
            reasons[job.id] = own
            continue
        assignments = room.place(gang)
        if assignments:
            decisions.append(Reserve((_placement(gang, assignments),)))
            explain.forget()
        elif job.phase is Phase.WAITING:
            reasons[job.id] = explain.why(job.spec)
            if starving(gang) and isinstance(reasons[job.id], NotEnough | Fragmented):
                room.keep_for(job)
                explain.forget()
    return Plan(tuple(decisions), reasons)


def _own_reason(gang: Gang, snapshot: Snapshot) -> Reason | None:
    stopped = stopped_by(snapshot.queues, gang.job.spec.queue)
    own = own_reason(gang, snapshot.now)
    return own if own is not None or stopped is None else QueueStopped(stopped)


def _is_starving(snapshot: Snapshot, gang: Gang) -> bool:
    since = gang.job.waiting_since
    return since is not None and snapshot.now - since >= snapshot.starve_after


def _wants_a_place(gang: Gang) -> bool:
    job = gang.job
    if job.verdict is not None or job.drain is not None or gang.unreleased():
        return False
    if job.spec.restart is not Restart.TASK and not gang.is_idle:
        return False
    return bool(gang.waiting())


def _order(gang: Gang, *, starving: bool) -> tuple[bool, int, int, int, str]:
    """Repairs first; then by priority, size and age. Who has waited too long goes by age alone."""
    job = gang.job
    size = -TASK_LIMIT if starving else -len(gang.tasks)
    return (gang.is_idle, -job.priority, size, job.created_at, job.id)


def _placement(gang: Gang, assignments: list[Assignment]) -> Placement:
    return Placement(gang.job.id, gang.job.version, tuple(assignments))
