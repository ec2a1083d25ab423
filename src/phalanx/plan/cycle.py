"""The planning cycle: one pass over all pending gangs.

`plan` is the recipe. A gang that cannot start does not hold up the gangs behind it, unless one of
them would delay a start that is reserved for it.
"""

from typing import NamedTuple

from phalanx.core.time_units import Micros
from phalanx.plan.decisions import Evict, Gather, Plan, Reserve
from phalanx.plan.elastic import grow
from phalanx.plan.expiry import break_deadlocks, expire
from phalanx.plan.explain.shortage import Shortage
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.order import ServingOrder
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.serving.consolidation import find_moves
from phalanx.plan.serving.serving import Serving
from phalanx.plan.serving.starts import placement
from phalanx.plan.state.planner_state import Moment, PlannerState


def plan(state: PlannerState, now: Micros) -> Plan:
    """Decide what starts, grows, stops and expires now, and why every other gang stays pending.

    Nothing changes that a later plan could notice: the same state and time give the same plan.

    1. Time out gangs whose schedule timeout has ended, and release gathered places that block
       each other.
    2. Settle what every queue deserves.
    3. Line up the gangs that may fit, and the first few of those that do not.
    4. Serve them one by one, the least served queue first: start the gang, evict others for it, or
       gather places; otherwise explain why it stays pending, and reserve a start for it. Once
       nothing can be done for the gangs that are left, they are not served one by one.
    5. Let elastic gangs grow with what is left.
    """
    moment = state.at(now)
    work = _begin(moment)
    serving = Serving(work)
    while not serving.is_over() and (candidate := work.order.pop()) is not None:
        serving.serve(candidate)
    grow(work)
    limits = work.shares.limits.remaining()
    growing = (role.request for g in work.pending.growing.values() for role in g.roles)
    requests = {*work.lineup.requests, *growing}
    work.reasons.shortage = Shortage(work.capacity.both, requests, work.lineup.domains, limits)
    decisions, starts = tuple(work.decisions), work.reservations.starts()
    placed = (d.placements for d in decisions if isinstance(d, Reserve | Evict))
    served = {placement.job for placements in placed for placement in placements} | work.excluded
    broken = work.reservations.broken(starts, served)
    made = Plan(
        moment.now,
        decisions,
        work.reasons,
        starts,
        serving.evictions.cursor,
        broken,
        work.unused_shares,
    )
    work.close()
    return made


def decision_for(state: PlannerState, now: Micros, job: str) -> Reserve | Evict | Gather | None:
    """The decision of a plan for one gang, before it grows; None if the gang stays pending.

    What the plan would do after the turn of that gang is not computed.
    """
    moment = state.at(now)
    gang = moment.pending.gangs.get(job)
    bucket = None if gang is None else moment.pending.bucket_of(gang)
    if bucket is None:
        return None
    work = _begin(moment)
    serving = Serving(work)
    while bucket in work.order and (candidate := work.order.pop()) is not None:
        serving.serve(candidate)
        if candidate.last.job == job:
            break
    for trials in work.starts:
        if trials[0].gang.job == job:
            return Reserve(tuple(map(placement, trials)))
    for decision in work.decisions:
        if isinstance(decision, Evict) and decision.placements[0].job == job:
            return decision
        if isinstance(decision, Gather) and decision.placement.job == job:
            return decision
    return None


class MovesNotAllowed(NamedTuple):
    """Moves that would let a gang start, if the queue of the gangs allowed it."""

    gangs: int
    queue: str  #: the first that does not


def moves_not_allowed(state: PlannerState, now: Micros, job: str) -> MovesNotAllowed | None:
    """Whether a gang would start if gangs of other queues could be moved too."""
    moment = state.at(now)
    gang = moment.pending.gangs.get(job)
    if gang is None or moment.pending.own_reason(gang) is not None:
        return None
    work = _begin(moment)
    moves = find_moves(work, gang, moment.running.queues()) if work.is_fragmented(gang) else None
    queues = set() if moves is None else {unit.gang.queue for unit in moves.units}
    closed = sorted(queues - work.movable_queues)
    return MovesNotAllowed(len(moves.units), closed[0]) if moves is not None and closed else None


def settled_shares(moment: Moment) -> FairShares:
    """What every queue uses and deserves when a pass begins, by all rules: also by those for
    starving gangs, unused shares and stopped queues."""
    work = _with_shares(moment)
    shares = work.shares
    work.close()
    return shares


def order_of_queues(moment: Moment) -> ServingOrder:
    """The order when a pass begins, before any gang is in it: by what the queues use now."""
    return _with_shares(moment).order


def _begin(moment: Moment) -> PlanningPass:
    """Steps 1 to 3."""
    work = _with_shares(moment)
    work.lineup.fill()
    return work


def _with_shares(moment: Moment) -> PlanningPass:
    """Steps 1 and 2."""
    work = PlanningPass(moment)
    expire(work)
    break_deadlocks(work)
    work.lineup.settle_shares()
    return work
