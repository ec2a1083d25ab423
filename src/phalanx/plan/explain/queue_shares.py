"""What every queue uses, requests and deserves, and what a change of the queues would do."""

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from phalanx.core.model import Queue
from phalanx.core.spec.job import Resources
from phalanx.core.time_units import Micros
from phalanx.plan.cycle import plan, settled_shares
from phalanx.plan.decisions import Evict, Plan, PlannedVictim, Reserve
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.state.nodes import Floats
from phalanx.plan.state.planner_state import Moment, PlannerState


class SettledShare(msgspec.Struct, frozen=True):
    """The amounts of a queue and the queues below it, by resource."""

    queue: Queue
    used: Resources
    requested: Resources  #: by pending gangs that could start
    deserved: Resources
    borrowed: Resources  #: what it uses above what it deserves
    running: int  #: gangs of the queue itself
    pending: int


class QueueChangeEffects(msgspec.Struct, frozen=True):
    """What the next plan does otherwise if queues are changed."""

    before: tuple[SettledShare, ...]
    after: tuple[SettledShare, ...]
    starts: tuple[str, ...]  #: jobs that start only after the change
    waits: tuple[str, ...]  #: jobs that start only without the change
    victims: tuple[PlannedVictim, ...]  #: evicted only after the change


def queue_shares(state: Moment) -> tuple[SettledShare, ...]:
    """By name of the queue."""
    shares = settled_shares(state)
    running = Counter(each.gang.queue for each in state.running.by_job.values())
    started = set(state.running.by_job)
    pending = Counter(g.queue for g in state.pending.gangs.values() if g.job not in started)
    return tuple(
        SettledShare(
            branch.queue,
            _amounts(shares, branch.used),
            _amounts(shares, branch.requested),
            _amounts(shares, branch.deserved),
            _amounts(shares, np.maximum(branch.used - branch.deserved, 0)),
            running[name],
            pending[name],
        )
        for name, branch in sorted(shares.branches.items())
    )


def _amounts(shares: FairShares, amounts: Floats) -> Resources:
    """By resource, rounded; resources of which there is nothing are left out."""
    rows = zip(shares.table.rows, shares.shared, amounts, strict=True)
    return {name: round(float(each)) for name, is_shared, each in rows if is_shared and each >= 0.5}


def effects_of_queues(
    state: PlannerState, now: Micros, queues: Mapping[str, Queue]
) -> QueueChangeEffects:
    """Compare the next plan with the one that these queues lead to."""
    changed = state.fork()
    changed.set_queues(queues)
    before, after = plan(state, now), plan(changed, now)
    known = {victim.job for victim in _victims(before)}
    return QueueChangeEffects(
        queue_shares(state.at(now)),
        queue_shares(changed.at(now)),
        tuple(sorted(_starting(after) - _starting(before))),
        tuple(sorted(_starting(before) - _starting(after))),
        tuple(victim for victim in _victims(after) if victim.job not in known),
    )


def _starting(made: Plan) -> set[str]:
    """The jobs that start, at once or when others have stopped."""
    decisions = (each for each in made.decisions if isinstance(each, Reserve | Evict))
    return {placement.job for each in decisions for placement in each.placements}


def _victims(made: Plan) -> list[PlannedVictim]:
    return [v for each in made.decisions if isinstance(each, Evict) for v in each.victims]
