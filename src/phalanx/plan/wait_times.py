"""How long gangs have been pending: the median of each size, and the bound after which a gang is
overdue."""

from collections.abc import Iterable
from itertools import chain

from phalanx.core.time_units import Micros
from phalanx.plan.model import PlannerPolicy, comparable_limit

#: The median is that of the last gangs of each size that started.
_SAMPLE = 101


class WaitTimes:
    """The wait times of the gangs that started last, by size. Sizes up to the next power of two
    count together. Never changed: `after` makes a new one."""

    def __init__(self) -> None:
        """No starts."""
        self._by_size: dict[int, tuple[Micros, ...]] = {}
        #: The same, the shortest first.
        self._sorted: dict[int, list[Micros]] = {}
        self._medians: dict[int, Micros] = {}

    def after(self, starts: Iterable[tuple[int, Micros]]) -> "WaitTimes":
        """With further starts: the size of each gang, and how long it was pending."""
        by_size: dict[int, list[Micros]] = {}
        for size, wait in starts:
            by_size.setdefault(_size_class(size), []).append(wait)
        if not by_size:
            return self
        new = WaitTimes()
        new._by_size, new._sorted = self._by_size.copy(), self._sorted.copy()
        for size, waits in by_size.items():
            new._by_size[size] = (*self._by_size.get(size, ()), *waits)[-_SAMPLE:]
            new._sorted[size] = sorted(new._by_size[size])
        return new

    def median(self, size: int) -> Micros:
        """The median wait of gangs of this size and of smaller ones; 0 if none is known.

        Without the smaller ones, gangs of a size of which all starve would raise their own bound.
        """
        size = _size_class(size)
        median = self._medians.get(size)
        if median is None:
            known = self._sorted.items()
            waits = sorted(chain.from_iterable(of for each, of in known if each <= size))
            median = self._medians[size] = waits[len(waits) // 2] if waits else 0
        return median

    def bound(self, policy: PlannerPolicy, size: int, duration: Micros | None) -> Micros:
        """How long a gang may be pending: `max_wait` times its time limit or the median wait of
        its size, whichever is longer, and at least until it is starving. Limits that are too long
        to compare count as the longest."""
        longer = max(comparable_limit(duration), self.median(size))
        return max(policy.starve_after, round(policy.max_wait * longer))


def _size_class(size: int) -> int:
    return max(0, size - 1).bit_length()
