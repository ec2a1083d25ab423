"""One pass over all that waits: in order, each gang whole or not at all, a reason for the rest.

Capacity only falls within a pass, so a shape that did not fit is not tried again in it.
"""

from phalanx.core.events import Assignment, Placement
from phalanx.core.gang import Gang
from phalanx.core.model import Phase
from phalanx.core.reasons import Reason, own_reason
from phalanx.core.spec import Restart
from phalanx.plan.place import Room
from phalanx.plan.snapshot import Plan, Reserve, Snapshot
from phalanx.plan.why import Explainer


def plan(snapshot: Snapshot) -> Plan:
    room = Room(snapshot.nodes)
    explain = Explainer(room, snapshot.nodes)
    decisions: list[Reserve] = []
    reasons: dict[str, Reason] = {}
    for gang in sorted(filter(_wants_a_place, snapshot.gangs.values()), key=_order):
        own = own_reason(gang, snapshot.now)
        if own is not None:
            reasons[gang.job.id] = own
            continue
        assignments = room.place(gang)
        if assignments:
            decisions.append(Reserve((_placement(gang, assignments),)))
            explain.forget()
        elif gang.job.phase is Phase.WAITING:
            reasons[gang.job.id] = explain.why(gang.job.spec)
    return Plan(tuple(decisions), reasons)


def _wants_a_place(gang: Gang) -> bool:
    job = gang.job
    if job.verdict is not None or job.drain is not None or gang.unreleased():
        return False
    if job.spec.restart is not Restart.TASK and not gang.is_idle:
        return False
    return bool(gang.waiting())


def _order(gang: Gang) -> tuple[bool, int, int, int, str]:
    """Repairs first; then by priority, size and age."""
    job = gang.job
    return (gang.is_idle, -job.priority, -len(gang.tasks), job.created_at, job.id)


def _placement(gang: Gang, assignments: list[Assignment]) -> Placement:
    return Placement(gang.job.id, gang.job.version, tuple(assignments))
