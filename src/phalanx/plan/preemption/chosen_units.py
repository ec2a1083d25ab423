"""The units chosen so far in a search for victims, and what is free without them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from phalanx.plan.model import EvictionGuard
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.state.capacity import FreeCapacity


class ChosenUnits:
    """A working set of units, by their number in the list of candidates.

    A chosen unit's tasks count as gone from every capacity and from the usage of its queue.
    """

    def __init__(
        self,
        units: Sequence[EvictionUnit],
        eligibility: EvictionEligibility,
        capacities: Sequence[FreeCapacity],
    ) -> None:
        self._units = units
        self._eligibility = eligibility
        self._capacities = capacities
        self.by_number: dict[int, EvictionUnit] = {}
        #: Single tasks chosen, by job and role; the jobs; the jobs of whole gangs chosen.
        self._shrunk_by: dict[tuple[str, str], int] = {}
        self._shrunk: set[str] = set()
        self._whole: set[str] = set()
        #: Kinds of units that must not be evicted besides those that were chosen before.
        self._refused: set[tuple[str, bytes]] = set()
        #: Chosen tasks by their guard; and the candidates that a guard has refused.
        self._guarded: Counter[EvictionGuard] = Counter()
        self._refused_by_guard: set[int] = set()

    def choose(self, number: int) -> bool:
        """Add a candidate if it may be evicted besides the others; whether it is chosen now."""
        unit = self._units[number]
        if number in self.by_number:
            return True
        gang = unit.gang
        if gang.job in self._whole or not self._can_shrink(unit):
            return False
        chosen = self.by_number.items() if gang.job in self._shrunk else ()
        own = {n: other for n, other in chosen if other.occupancy is unit.occupancy}
        if gang.guarded and not self._guards_allow(unit, own.values()):
            self._refused_by_guard.add(number)
            return False
        if unit.kind in self._refused or not self._eligibility.may_add(unit, own.values()):
            # With each victim a queue has less above its share, so this kind stays refused.
            self._refused.add(unit.kind)
            return False
        if unit.whole:
            # A gang that is evicted whole does not also lose single tasks.
            self._whole.add(gang.job)
            self.keep(*own)
        else:
            key = (gang.job, gang.tasks[unit.positions[0]].role)
            self._shrunk_by[key] = self._shrunk_by.get(key, 0) + 1
            self._shrunk.add(gang.job)
        self.evict({number: unit})
        return True

    def _guards_allow(self, unit: EvictionUnit, replaced: Iterable[EvictionUnit]) -> bool:
        """Whether the guards allow the unit besides those chosen. `replaced` are chosen units that
        it takes the place of."""
        counts = self._guarded.copy()
        counts.subtract(guard for each in replaced for guard in each.guards())
        counts.update(unit.guards())
        return _hold(counts)

    @property
    def guards_hold(self) -> bool:
        """Whether all guards allow the chosen units together."""
        return _hold(self._guarded)

    def _can_shrink(self, unit: EvictionUnit) -> bool:
        """Whether the gang keeps its minimum if it loses this task besides those chosen."""
        gang = unit.gang
        if unit.whole or gang.only_gathered:
            return True
        role = gang.tasks[unit.positions[0]].role
        lost = sum(count for (job, _), count in self._shrunk_by.items() if job == gang.job)
        if len(gang.tasks) - lost <= gang.min_available:
            return False
        left = sum(task.role == role for task in gang.tasks)
        left -= self._shrunk_by.get((gang.job, role), 0)
        return left > dict(gang.role_min).get(role, 0)

    def refused(self) -> list[int]:
        """The candidates that were refused because of those chosen before them."""
        by_kind = (n for n, unit in enumerate(self._units) if unit.kind in self._refused)
        return sorted({*by_kind, *self._refused_by_guard})

    def clear(self) -> None:
        """Start again with no unit chosen and none refused."""
        self.keep(*self.by_number)
        self._shrunk_by, self._shrunk, self._whole, self._refused = {}, set(), set(), set()
        self._refused_by_guard = set()

    # Without asking whether they may be evicted

    def evict(self, units: Mapping[int, EvictionUnit]) -> None:
        """Add units."""
        for number, unit in units.items():
            self._free(unit)
            self.by_number[number] = unit

    def keep(self, *numbers: int) -> None:
        """Remove units."""
        for number in numbers:
            self._occupy(self.by_number.pop(number))

    def suspend(self) -> None:
        """Give all tasks their capacity back, without forgetting the choice."""
        for unit in self.by_number.values():
            self._occupy(unit)

    def resume(self) -> None:
        """Take all tasks away again after `suspend`."""
        for unit in self.by_number.values():
            self._free(unit)

    def _free(self, unit: EvictionUnit) -> None:
        """Take the unit's tasks out of usage and capacities."""
        self._eligibility.usage.evict(unit)
        if unit.gang.guarded:
            self._guarded.update(unit.guards())
        for capacity in self._capacities:
            unit.vacate(capacity)

    def _occupy(self, unit: EvictionUnit) -> None:
        """Put the unit's tasks back into usage and capacities."""
        self._eligibility.usage.restore(unit)
        if unit.gang.guarded:
            self._guarded.subtract(unit.guards())
        for capacity in self._capacities:
            unit.vacate(capacity, -1)


def _hold(counts: Mapping[EvictionGuard, int]) -> bool:
    return all(count <= guard.allowed for guard, count in counts.items())
