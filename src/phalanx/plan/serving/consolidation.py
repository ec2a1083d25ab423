"""Consolidation: running gangs are moved to other nodes, so that a pending gang fits.

It is for gangs for which enough is free in total. A move is planned only if the pending gang and
every moved gang fit afterwards; the new places are kept for all of them. Moves come to an end: each
lets one more gang run and stops none for good, and a gang is moved once in its cooldown.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from phalanx.core.reasons import WaitingForVictims
from phalanx.plan.decisions import Evict, PlannedVictim
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.placement.trial import PlacementTrial, undo_all
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.preemption.candidates import CandidatePool, EvictionUnit, whole_gang
from phalanx.plan.preemption.node_gains import UnplacedTasks, node_gains
from phalanx.plan.preemption.victim_set import SearchSpace
from phalanx.plan.serving.starts import placement
from phalanx.plan.state.capacity import FreeCapacity

#: At most this many gangs are tried in one pass.
_SEARCHES = 4
#: The search for one gang begins at most this many times, each time with the next best node.
_BEGINNINGS = 8
#: At most this many gangs are moved for one.
_MOST_MOVES = 8


class Moves(NamedTuple):
    """Gangs to move, with the places that are taken for the pending gang and for each of them."""

    start: PlacementTrial
    units: list[EvictionUnit]
    restarts: list[PlacementTrial]

    def undo(self) -> None:
        """Give all places back."""
        undo_all((self.start, *self.restarts))


class Consolidation:
    """The moves of one pass."""

    def __init__(self, work: PlanningPass) -> None:
        self._work = work
        self._searches = 0

    def move(self, gangs: Sequence[PendingGang]) -> bool:
        """Move running gangs so that a pending one fits, and keep the places; False if no move
        would help. At most one gang is helped in a pass."""
        work, gang = self._work, gangs[0]
        if self._searches >= _SEARCHES or not work.may_be_helped_by_moves(gang):
            return False
        self._searches += 1
        moves = find_moves(work, gang, work.movable_queues)
        if moves is None:
            return False
        self._searches = _SEARCHES
        self._decide(moves)
        return True

    def _decide(self, moves: Moves) -> None:
        work, gang = self._work, moves.start.gang
        victims = tuple(PlannedVictim(u.gang.job, u.gang.version, (), u.cost) for u in moves.units)
        places = tuple(map(placement, moves.restarts))
        work.decisions.append(Evict((placement(moves.start),), victims, places))
        for unit in moves.units:
            work.exclude(unit.gang.job)
            work.search.exclude(unit.gang.job)
        work.search.exclude(gang.job)
        work.use(gang, moves.start.amounts())
        work.reservations.note_change()
        tasks = tuple(task for unit in moves.units for task in unit.task_ids())
        work.reasons.explicit[gang.job] = WaitingForVictims(tasks)


def find_moves(work: PlanningPass, gang: PendingGang, queues: Iterable[str]) -> Moves | None:
    """The cheapest moves of gangs of these queues that were found to let a gang start, with all
    places taken and the old ones free in the first capacity; None, and nothing changed, if there
    are none.

    Heuristic: nodes are freed one by one, the cheapest first; if the moved gangs do not fit
    elsewhere, the search begins again without the node that was freed first.
    """
    later = work.reservations.capacities_during(None)
    work.capacity.look_ahead()
    allowed = work.reservations.allowed_nodes(None)
    space = SearchSpace((work.capacity.soon, *later), allowed)
    units = _candidates(work, gang, queues)
    for beginning in range(_BEGINNINGS if units else 0):
        chosen = _enough(gang, units, space, beginning)
        if chosen is None:
            return None
        moves = _placed(gang, chosen, space)
        if moves is not None and sum(unit.cost for unit in chosen) <= work.policy.move_work:
            return moves
        if moves is not None:
            moves.undo()
        for unit in chosen:
            unit.vacate(space.capacities[0], -1)
    return None


def _candidates(work: PlanningPass, gang: PendingGang, queues: Iterable[str]) -> list[EvictionUnit]:
    """The gangs of these queues that may be moved, the least lost work first."""
    policy, now, units = work.policy, work.now, []
    for queue in set(queues).difference(work.state.layout.stopped_by):
        for occupancy in work.state.running.evictable(queue).gangs:
            other = occupancy.gang
            may_move = (
                other.restart is not None
                and other.job not in work.excluded
                and occupancy.is_preemptible
                and not other.guarded
                and other.priority <= gang.priority
                and now - other.started_at >= policy.min_runtime
                and (other.moved_at is None or now - other.moved_at >= policy.move_cooldown)
            )
            if may_move and occupancy.cost(now) <= policy.move_work:
                units.append(whole_gang(occupancy, now))
    units.sort(key=lambda unit: (unit.cost, len(unit.positions), unit.gang.job))
    return units


def _enough(
    gang: PendingGang, units: list[EvictionUnit], space: SearchSpace, beginning: int
) -> list[EvictionUnit] | None:
    """Units without which the gang fits, removed from the first capacity; None, and nothing
    removed, if there are none. The first gains, as many as `beginning`, are left out."""
    chosen: dict[int, EvictionUnit] = {}
    for role in sorted(gang.roles, key=hardness, reverse=True):
        wanted = role.need or min(gang.need, len(role.tasks))
        trial = PlacementTrial(gang, space.capacities, space.allowed)
        counts, nodes = trial.counts(role), trial.table.mask(role.request)
        nodes = nodes if space.allowed is None else nodes & space.allowed
        unplaced = UnplacedTasks(role, counts, nodes, wanted - int(counts.sum()))
        for number in _gained(units, space.capacities[0], unplaced, beginning):
            if number not in chosen:
                chosen[number] = units[number]
                units[number].vacate(space.capacities[0])
    # Units that are not needed stay, the most expensive first.
    for number in sorted(chosen, reverse=True):
        unit = chosen.pop(number)
        unit.vacate(space.capacities[0], -1)
        if not _fits(gang, space):
            unit.vacate(space.capacities[0])
            chosen[number] = unit
    if chosen and len(chosen) <= _MOST_MOVES and _fits(gang, space):
        return list(chosen.values())
    for unit in chosen.values():
        unit.vacate(space.capacities[0], -1)
    return None


def _gained(
    units: list[EvictionUnit], capacity: FreeCapacity, unplaced: UnplacedTasks, beginning: int
) -> list[int]:
    """The numbers of the units that are moved so that the missing tasks of a role fit."""
    numbers: list[int] = []
    missing = unplaced.missing
    pool = CandidatePool(units, len(capacity.table.rows))
    gains = node_gains(pool, {}, capacity, unplaced) if missing > 0 else iter(())
    for gain in islice(gains, beginning, None):
        if missing <= 0:
            break
        numbers += gain.units
        missing -= gain.tasks
    return numbers


def _fits(gang: PendingGang, space: SearchSpace) -> bool:
    trial = PlacementTrial(gang, space.capacities, space.allowed)
    fits = trial.place_minimum()
    trial.undo()
    return fits


def _placed(gang: PendingGang, units: list[EvictionUnit], space: SearchSpace) -> Moves | None:
    """Place the gang, then every moved gang, the largest first; None if any does not fit."""
    start = PlacementTrial(gang, space.capacities, space.allowed)
    if not start.place_minimum():
        return None
    restarts: list[PlacementTrial] = []
    for unit in sorted(units, key=lambda unit: -float(np.sum(unit.amounts))):
        if unit.gang.restart is not None:
            trial = PlacementTrial(unit.gang.restart, space.capacities, space.allowed)
            if not trial.place_minimum():
                undo_all((start, *restarts))
                return None
            restarts.append(trial)
    return Moves(start, units, restarts)
