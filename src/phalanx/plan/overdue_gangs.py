"""Overdue gangs that are stuck, and the gangs that are overdue besides them.

A stuck gang cannot start before work without a known end has ended, so it would hide the other
overdue gangs of its queue, and hold back those of other queues, for as long. Nodes are kept for it
all the same, because that work may be cancelled.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from phalanx.plan.first_gangs import OverdueInQueue
from phalanx.plan.model import PendingGang
from phalanx.plan.serving.gate import closed_gate

if TYPE_CHECKING:
    from phalanx.plan.planning_pass import PlanningPass

#: So many overdue gangs of a queue are looked at, besides the oldest one.
_LOOKED_AT = 32

_Gangs = tuple[PendingGang, ...]


def stuck_gangs(
    work: "PlanningPass", overdue: Sequence[OverdueInQueue]
) -> Iterator[tuple[_Gangs, _Gangs]]:
    """The oldest overdue gang of each queue in which it is stuck, and the oldest one that is not,
    if there is any. Nothing if only one gang is overdue at all."""
    for oldest, others in overdue:
        if work.reservations.is_promised(oldest[0]):
            continue
        later = [*islice(others, _LOOKED_AT)]
        if (later or len(overdue) > 1) and _is_stuck(work, oldest):
            able = (gangs for gangs in later if not _is_stuck(work, gangs, _beside(oldest, gangs)))
            yield oldest, next(able, ())


def has_end(gangs: _Gangs) -> bool:
    """Whether all of the gangs have a time limit."""
    return all(gang.duration is not None for gang in gangs)


def _beside(oldest: _Gangs, gangs: _Gangs) -> PendingGang | None:
    """The stuck gang whose nodes other gangs must leave free, because they might never end."""
    return None if has_end(gangs) else oldest[0]


def _is_stuck(work: "PlanningPass", gangs: _Gangs, beside: PendingGang | None = None) -> bool:
    """Whether gangs can be given neither a start time nor a limit or quota that becomes free."""
    if any(gang.nomination is not None for gang in gangs):
        return False
    return (
        closed_gate(work, gangs) is not None
        or work.lasting_work_excludes(gangs)
        or not work.reservations.fits_in_the_end(gangs, beside)
    )
