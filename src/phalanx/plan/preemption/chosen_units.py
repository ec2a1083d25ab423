"""The units chosen so far in a search for victims, and what is free without them."""

from collections.abc import Mapping, Sequence

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
        return [n for n, unit in enumerate(self._units) if unit.kind in self._refused]

    def clear(self) -> None:
        """Start again with no unit chosen and none refused."""
        self.keep(*self.by_number)
        self._shrunk_by, self._shrunk, self._whole, self._refused = {}, set(), set(), set()

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
        for capacity in self._capacities:
            unit.vacate(capacity)

    def _occupy(self, unit: EvictionUnit) -> None:
        """Put the unit's tasks back into usage and capacities."""
        self._eligibility.usage.restore(unit)
        for capacity in self._capacities:
            unit.vacate(capacity, -1)
