"""Jobs by a time at which something becomes due."""

from bisect import bisect_left, bisect_right, insort

from phalanx.core.time_units import Micros


class TimeIndex:
    """A sorted list of times and jobs. Both sides of a fork share it until one of them writes."""

    __slots__ = ("_entries", "_owned")

    def __init__(self) -> None:
        self._entries: list[tuple[Micros, str]] = []
        self._owned = True

    def fork(self) -> "TimeIndex":
        fork = TimeIndex.__new__(TimeIndex)
        fork._entries = self._entries  # noqa: SLF001
        fork._owned = self._owned = False  # noqa: SLF001
        return fork

    def add(self, at: Micros, job: str) -> None:
        insort(self._writable(), (at, job))

    def remove(self, at: Micros, job: str) -> None:
        entries = self._writable()
        del entries[bisect_left(entries, (at, job))]

    def _writable(self) -> list[tuple[Micros, str]]:
        if not self._owned:
            self._entries, self._owned = self._entries.copy(), True
        return self._entries

    def until(self, now: Micros) -> list[str]:
        """Jobs whose time has come by now."""
        return self.between(-1, now)

    def between(self, after: Micros, until: Micros) -> list[str]:
        """Jobs with a later time than `after`, up to and including `until`."""
        first = bisect_right(self._entries, after, key=_time)
        last = bisect_right(self._entries, until, key=_time)
        return [job for _, job in self._entries[first:last]]


def _time(entry: tuple[Micros, str]) -> Micros:
    return entry[0]
