"""The search for the cheapest set of victims among given candidates.

Units are chosen until the preemptor fits, the cheapest first. Then every unit that is not needed is
removed, and cheaper alternatives are tried.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang, RoleRequest
from phalanx.plan.pending import is_simple
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.preemption.candidates import (
    CandidatePool,
    EvictionUnit,
    VictimSet,
    eviction_cost,
    keeps_minimum,
)
from phalanx.plan.preemption.chosen_units import ChosenUnits
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.preemption.node_gains import UnplacedTasks, node_gains, places_without_each
from phalanx.plan.preemption.search_budget import SearchBudget
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Bools

#: At most this many alternatives of each kind are tried in a search.
_ALTERNATIVES = 16
#: The number of a domain that no node is in.
_NO_DOMAIN = -2


class SearchSpace(NamedTuple):
    """Where a preemptor may be placed."""

    #: What is free once all stopping tasks have stopped, then what is free at reserved start times.
    capacities: Sequence[FreeCapacity]
    allowed: Bools | None = None  #: None: all nodes


class VictimSetSearch:
    """One search among candidates that are sorted by cost."""

    def __init__(
        self,
        gangs: Sequence[PendingGang],
        eligibility: EvictionEligibility,
        pool: CandidatePool,
        space: SearchSpace,
        budget: SearchBudget,
    ) -> None:
        """`gangs` are the gangs of the preemptor, perhaps bound to a domain."""
        self._gangs = gangs
        self._eligibility = eligibility
        self._pool = pool
        self._units = pool.units
        self._capacities, self._allowed = space
        self._budget = budget
        self._chosen = ChosenUnits(pool.units, eligibility, space.capacities)

    def run(self) -> VictimSet | None:
        """The cheapest set found, with the preemptor's places taken in all capacities.

        None, and all capacities as before, if no set makes the preemptor fit.
        """
        if not self._choose_enough() and not self._start_with_refused():
            return None
        self._remove_unneeded()
        self._try_single_units()
        if self._exchange():
            self._remove_unneeded()
        return self._result()

    def repeat(self) -> VictimSet | None:
        """The set that `run` found, with the preemptor's places taken once more."""
        self._chosen.resume()
        return self._result()

    def _result(self) -> VictimSet | None:
        """The chosen units, with the preemptor's places taken and their own capacity restored."""
        units = tuple(self._chosen.by_number.values())
        trials = self._place() if self._eligibility.allows_result(units) else None
        self._chosen.suspend()
        return None if trials is None else VictimSet(trials, units)

    # Whether the preemptor fits

    def _fits(self) -> bool:
        """Whether the preemptor may and can start without the chosen units."""
        if self._is_countable:
            gang = self._gangs[0]
            self._budget.count_places()
            return self._is_allowed() and self._places_of(gang) >= gang.need
        trials = self._place()
        undo_all(trials)
        return trials is not None

    @cached_property
    def _is_countable(self) -> bool:
        """Whether the preemptor fits if and only if enough tasks do: there is no need to choose
        their places."""
        gang = self._gangs[0]
        return len(self._gangs) == 1 and gang.pack is None and is_simple(gang)

    def _fits_with(self, number: int, could_be_enough: Sequence[bool]) -> bool:
        """Whether the preemptor fits once one more unit is evicted; in that case it is chosen."""
        if not could_be_enough[number]:
            # The work is counted as if places had been looked for.
            if self._is_countable:
                self._budget.count_places()
            else:
                self._budget.try_placement()
            return False
        self._chosen.evict({number: self._units[number]})
        if self._fits():
            return True
        self._chosen.keep(number)
        return False

    def _could_be_enough(self) -> Sequence[bool]:
        """For each unit: whether the preemptor might fit if it were evicted besides those that are
        chosen, as far as counting places can tell."""
        gang = self._gangs[0]
        if len(self._gangs) > 1 or len(gang.roles) > 1 or gang.gathered:
            return [True] * len(self._units)
        role, nodes = gang.roles[0], self._nodes_for(gang, gang.roles[0])
        places = places_without_each(self._pool, self._capacities[0], role, nodes)
        return (places >= gang.need).tolist()  # type: ignore[no-any-return]

    def _places_of(self, gang: PendingGang) -> int:
        """How many tasks of the first role of a gang fit."""
        if len(self._capacities) == 1 and self._allowed is None:
            return self._capacities[0].fit(gang.roles[0].request).total
        trial = PlacementTrial(gang, self._capacities, self._allowed)
        return int(trial.counts(gang.roles[0]).sum())

    def _is_allowed(self) -> bool:
        """Whether the preemptor is allowed a start without the chosen units, if it fits."""
        chosen = self._chosen
        return chosen.guards_hold and self._eligibility.allows_start(chosen.by_number.values())

    def _place(self) -> tuple[PlacementTrial, ...] | None:
        """Place every gang of the preemptor; None if one is not allowed or does not fit."""
        self._budget.try_placement()
        if not self._is_allowed():
            return None
        trials = place_all(self._trials())
        if trials is not None and not self._eligibility.allows_placement(trials):
            undo_all(trials)
            return None
        return trials

    def _trials(self) -> list[PlacementTrial]:
        return [PlacementTrial(gang, self._capacities, self._allowed) for gang in self._gangs]

    # Choosing enough

    def _choose_enough(self) -> bool:
        """Choose units until the preemptor fits.

        Heuristic: role by role, the hardest first, free the nodes on which the cheapest units let
        more tasks in. If the preemptor still does not fit because of a domain or a limit, add
        further units in order of cost, twice as many each time.
        """
        trials = self._trials()
        for trial in trials:
            for role in sorted(trial.gang.roles, key=hardness, reverse=True):
                wanted = role.need or min(trial.gang.need, len(role.tasks))
                self._free_nodes_for(trial, role, wanted)
                trial.place(role, wanted)
        undo_all(trials)
        if self._fits():
            return True
        useful = self._useful_units()
        remaining = [number for number in useful if number not in self._chosen.by_number]
        step = 1
        while remaining:
            for number in remaining[:step]:
                self._chosen.choose(number)
            remaining = remaining[step:]
            step *= 2
            if self._fits():
                return True
        return False

    def _useful_units(self) -> Sequence[int]:
        """The units that could let the preemptor start: those on nodes that it may use. All units,
        where a limit of its queue binds."""
        if not self._eligibility.limits_hold():
            return range(len(self._units))
        return self._units_in_reach

    @cached_property
    def _units_in_reach(self) -> list[int]:
        """The units with tasks on nodes that the preemptor may use."""
        roles = [(gang, role) for gang in self._gangs for role in gang.roles]
        reach = np.logical_or.reduce([self._nodes_for(*each) for each in roles])
        return [n for n, unit in enumerate(self._units) if reach[unit.nodes].any()]

    def _start_with_refused(self) -> bool:
        """Choose again, beginning with a unit that was refused.

        Heuristic: the units chosen first may have left their queue too little above its share for
        the one unit that would have been enough.
        """
        useful = self._useful_units()
        refused = [number for number in self._chosen.refused() if number in useful]
        for number in refused[:_ALTERNATIVES]:
            if not self._budget.allows_more():
                break
            self._chosen.clear()
            if self._chosen.choose(number) and self._choose_enough():
                return True
        self._chosen.clear()
        return False

    def _free_nodes_for(self, trial: PlacementTrial, role: RoleRequest, wanted: int) -> None:
        """Choose the cheapest units that let `wanted` tasks of the role fit, node by node."""
        counts = trial.counts(role)
        missing = wanted - int(counts.sum())
        if missing <= 0:
            return
        unplaced = UnplacedTasks(role, counts, self._nodes_for(trial.gang, role), missing)
        chosen = self._chosen
        self._budget.look_at(len(self._units))
        for gain in node_gains(self._pool, chosen.by_number, self._capacities[0], unplaced):
            if all(chosen.choose(number) for number in gain.units):
                missing -= gain.tasks
            if missing <= 0:
                return

    def _nodes_for(self, gang: PendingGang, role: RoleRequest) -> Bools:
        """Mask of the nodes that the role may use."""
        table = self._capacities[0].table
        nodes = table.mask(role.request)
        if self._allowed is not None:
            nodes = nodes & self._allowed
        pack = gang.pack
        if pack is not None and pack.mode is PackMode.REQUIRE and gang.domain is not None:
            codes, names = table.domains(pack.by)
            nodes = nodes & (codes == names.get(gang.domain, _NO_DOMAIN))
        return nodes

    # Choosing less, or cheaper

    def _remove_unneeded(self) -> None:
        """Keep every unit running that is not needed, the most expensive first."""
        for number in sorted(self._chosen.by_number, reverse=True):
            unit = self._chosen.by_number[number]
            self._chosen.keep(number)
            if not self._fits() and not (unit.whole and self._shrinks_instead(unit)):
                self._chosen.evict({number: unit})

    @cached_property
    def _tasks_of(self) -> dict[str, dict[int, EvictionUnit]]:
        """By job: the units that are single tasks, with their numbers."""
        tasks: dict[str, dict[int, EvictionUnit]] = {}
        for number, unit in enumerate(self._units):
            if not unit.whole:
                tasks.setdefault(unit.gang.job, {})[number] = unit
        return tasks

    def _shrinks_instead(self, whole: EvictionUnit) -> bool:
        """Replace a whole gang by single tasks of it, if they are enough and it keeps its minimum.

        Whether it was replaced.
        """
        chosen, tasks = self._chosen, self._tasks_of.get(whole.gang.job)
        if tasks is None:
            return False
        chosen.evict(tasks)
        for number, unit in reversed(tasks.items()) if self._fits() else ():
            chosen.keep(number)
            if not self._fits():
                chosen.evict({number: unit})
        evicted = [number for number in tasks if number in chosen.by_number]
        positions = {position for number in evicted for position in tasks[number].positions}
        if self._fits() and keeps_minimum(whole.gang, positions):
            return True
        chosen.keep(*evicted)
        return False

    def _try_single_units(self) -> None:
        """Replace all chosen units by a single one that is enough and cheaper.

        Heuristic: nodes are freed one by one, so a gang that spans several nodes may be cheaper
        than one gang on each of them. If a gang only shrinks, it is hardly affected, and the number
        of gangs does not count.
        """
        chosen, before = self._chosen, dict(self._chosen.by_number)
        if not any(unit.whole for unit in before.values()):
            return
        chosen.keep(*before)
        keys = 4 if all(unit.whole for unit in before.values()) else 3
        best, best_cost = before, eviction_cost(before.values())[:keys]
        costs = [cost[:keys] for cost in self._pool.own_costs]
        cheaper = [number for number, cost in enumerate(costs) if cost < best_cost]
        could_be_enough = self._could_be_enough() if cheaper else ()
        for number in cheaper[:_ALTERNATIVES]:
            if self._budget.is_spent:
                break
            unit = self._units[number]
            may_add = costs[number] < best_cost and self._eligibility.may_add(unit)
            if may_add and self._fits_with(number, could_be_enough):
                best, best_cost = {number: unit}, costs[number]
                chosen.keep(number)
        chosen.evict(best)

    def _exchange(self) -> bool:
        """Replace one of several chosen units by a cheaper whole gang, where that is enough.

        Whether any unit was replaced.
        """
        chosen, exchanged, tries = self._chosen, False, _ALTERNATIVES
        for number in sorted(chosen.by_number, reverse=True) if len(chosen.by_number) > 1 else ():
            replaced, cost = chosen.by_number[number], eviction_cost(chosen.by_number.values())
            chosen.keep(number)
            could_be_enough = self._could_be_enough()
            jobs = {unit.gang.job for unit in chosen.by_number.values()}
            for other, unit in enumerate(self._units[:number]):
                if not unit.whole or unit.gang.job in jobs or not tries or self._budget.is_spent:
                    continue
                if eviction_cost((*chosen.by_number.values(), unit)) < cost:
                    tries -= 1
                    may_add = self._eligibility.may_add(unit)
                    if may_add and self._fits_with(other, could_be_enough):
                        exchanged = True
                        break
            else:
                chosen.evict({number: replaced})
        return exchanged
