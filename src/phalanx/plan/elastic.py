"""Elastic growth: free capacity goes to tasks above the minimum once all minimums are served.

Queues take turns as they do for whole gangs. In a queue the highest priority grows first, then the
gang with the fewest tasks above its minimum; in a gang, the role with the fewest tasks for its own
minimum.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from heapq import heapify, heappop, heapreplace
from itertools import chain

from msgspec.structs import replace

from phalanx.core.reasons import AboveMinimum
from phalanx.core.time_units import Micros
from phalanx.plan.decisions import Reserve
from phalanx.plan.model import PendingGang, PlannerPolicy, RoleRequest
from phalanx.plan.order import ServingOrder
from phalanx.plan.pending import order_key
from phalanx.plan.placement.amounts import role_amounts
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.serving.starts import placement
from phalanx.plan.state.capacity import FreeCapacity

#: The tasks that can be added are given out in about this many turns.
_TURNS = 256


def grow(work: PlanningPass) -> None:
    """Let starting and running gangs grow, and decide all starts of the pass."""
    growing = []
    for gang in sorted(work.pending.growing.values(), key=lambda gang: gang.job):
        stopped = work.stopped(gang)
        if stopped is not None:
            tasks = sum(len(role.tasks) for role in gang.roles)
            work.reasons.growth[gang.job] = AboveMinimum(tasks, str(stopped))
        elif gang.job not in work.excluded:
            growing.append(gang)
    running: list[PlacementTrial] = []
    starting = [*chain(*work.starts)]
    if growing or any(trial.has_unplaced for trial in starting):
        growth = ElasticGrowth(work.order, work.policy, work.now, work.capacity.both)
        running = growth.trials(growing)
        growth.share_out([*starting, *running], lambda *more: _add_tasks(work, *more))
    work.decisions += (Reserve(tuple(map(placement, trials))) for trials in work.starts)
    work.decisions += (Reserve((placement(trial),)) for trial in running if trial.count)


def _add_tasks(work: PlanningPass, trial: PlacementTrial, role: RoleRequest, wanted: int) -> int:
    """Place at most `wanted` tasks of a role; the number of tasks placed.

    Starts that were reserved after the gang was placed must not be delayed either.
    """
    later = work.reservations.capacities_during(trial.gang.duration)
    allowed = work.reservations.allowed_nodes(trial.gang.duration)
    trial.continue_on((*work.capacity.both, *later), allowed)
    placed = trial.grow(role, work.headroom(trial.gang).allows(role, wanted))
    work.use(trial.gang, role_amounts(role, placed, trial.table))
    return placed


class GrowingGang:
    """A gang with tasks above its minimum that have no place."""

    def __init__(self, trial: PlacementTrial) -> None:
        self.trial = trial
        self.above_minimum = trial.gang.above_minimum
        #: A heap of (tasks for its own minimum, position in the gang, role).
        self._roles = [
            (self._ratio_to_minimum(role), position, role)
            for position, role in enumerate(trial.gang.roles)
            if trial.unplaced(role)
        ]
        heapify(self._roles)

    @property
    def roles(self) -> list[RoleRequest]:
        """The roles that can grow."""
        return [role for _, _, role in self._roles]

    @property
    def role_count(self) -> int:
        return len(self._roles)

    def next_role(self) -> RoleRequest:
        """The role that grows next: the one with the fewest tasks for its own minimum."""
        return self._roles[0][2]

    def note_growth(self, *, ended: bool) -> None:
        """Update the order of the roles after the next role has grown, for the last time or not."""
        _, position, role = self._roles[0]
        if ended:
            heappop(self._roles)
        else:
            heapreplace(self._roles, (self._ratio_to_minimum(role), position, role))

    def _ratio_to_minimum(self, role: RoleRequest) -> float:
        placed = role.placed + len(role.tasks) - self.trial.unplaced(role)
        return placed / role.minimum if role.minimum else math.inf


class ElasticGrowth:
    """The growth at the end of one pass."""

    def __init__(
        self,
        order: ServingOrder,
        policy: PlannerPolicy,
        now: Micros,
        capacities: Sequence[FreeCapacity],
    ) -> None:
        self._order = order
        self._policy = policy
        self._now = now
        self._capacities = capacities
        #: How many tasks of a request fitted when growth began.
        self._fitted = cache(capacities[0].total_fit)
        self._growing: dict[str, GrowingGang] = {}

    def trials(self, gangs: Iterable[PendingGang]) -> list[PlacementTrial]:
        """Trials of the running gangs of which at least one task might fit."""
        fitting = (gang for gang in gangs if any(self._fitted(r.request) for r in gang.roles))
        trials = [PlacementTrial(gang, self._capacities) for gang in fitting]
        return [trial for trial in trials if trial.place_minimum()]

    def share_out(
        self,
        trials: Iterable[PlacementTrial],
        place: Callable[[PlacementTrial, RoleRequest, int], int],
    ) -> None:
        """Let the gangs of the trials grow in turns until nothing more fits.

        `place` places at most so many tasks of a role and returns how many it placed. Heuristic:
        a turn is one task where few can be added, and more where many can, so that the number of
        turns stays bounded.
        """
        for trial in trials:
            gang = GrowingGang(trial)
            if any(self._fitted(role.request) for role in gang.roles):
                self._growing[trial.gang.job] = gang
                self._add_turn(gang)
        tasks_per_turn = 1 + self._most_tasks() // _TURNS
        while (candidate := self._order.pop()) is not None:
            gang = self._growing[candidate.last.job]
            role = gang.next_role()
            unplaced = gang.trial.unplaced(role)
            alone = len(self._growing) == 1 and gang.role_count == 1
            wanted = unplaced if alone else min(tasks_per_turn, unplaced)
            placed = place(gang.trial, role, wanted)
            gang.above_minimum += placed
            gang.note_growth(ended=placed < wanted or placed == unplaced)
            if gang.role_count:
                self._add_turn(gang)
            else:
                del self._growing[candidate.last.job]

    def _most_tasks(self) -> int:
        """An upper bound of the tasks that can be added."""
        roles = [(gang.trial, role) for gang in self._growing.values() for role in gang.roles]
        unplaced = sum(trial.unplaced(role) for trial, role in roles)
        return min(unplaced, sum(map(self._fitted, {role.request for _, role in roles})))

    def _add_turn(self, growing: GrowingGang) -> None:
        """Put the gang into the serving order with a need of one task."""
        gang, role = growing.trial.gang, growing.next_role()
        one_task = replace(role, tasks=role.tasks[:1], need=1)
        turn = replace(gang, roles=(one_task,), need=1, gathered=())
        key = (growing.above_minimum, *order_key(self._policy, gang, self._now))
        self._order.add_growing(turn, key)
