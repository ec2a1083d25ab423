"""What the limits of queues leave at future times, and the gangs for which a part of it is kept.

A start is reserved at a time at which the limits allow it, and gangs that start before it leave
enough of them. The first gang of a queue that waits for a limit is kept a part of it in the same
way, without nodes, from the time at which enough of the limit is left.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.core.time_units import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.future_capacity import end_of
from phalanx.plan.model import NEVER, PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.capacity import Occupant
from phalanx.plan.state.nodes import EPSILON, Floats
from phalanx.plan.state.running import RunningGangs

#: By queue that has a limit: amounts of it.
_Needs = dict[str, Floats]


class _Claim(NamedTuple):
    """What a gang or a group needs of limits from a time on."""

    needs: _Needs
    at: Micros
    end: Micros
    start: ReservedStart


class FutureLimits:
    def __init__(self, shares: FairShares, running: RunningGangs, now: Micros) -> None:
        self._shares = shares
        self._running = running
        self._now = now
        self._claims: list[_Claim] = []
        #: Queues whose limit is kept for a gang that waits for it.
        self._kept: set[str] = set()
        #: What has started in this pass, and, negative, what was evicted, with the end of each.
        self._changes: list[tuple[Micros, _Needs]] = []
        #: By queue and time: what tasks of it, and of the queues below it, free by then.
        self._freed: dict[tuple[str, Micros], Floats] = {}

    # What the pass decided

    def add_started(self, queue: str, tasks: Iterable[tuple[Micros, Occupant]]) -> None:
        """Count tasks that start in this pass, each with its known end."""
        self._add(queue, tasks, 1)

    def add_evicted(self, queue: str, tasks: Iterable[tuple[Micros, Occupant]]) -> None:
        """Count tasks that are evicted in this pass: their queue uses nothing of them any more."""
        self._add(queue, tasks, -1)

    def _add(self, queue: str, tasks: Iterable[tuple[Micros, Occupant]], sign: int) -> None:
        if queue in self._shares.limits.limited:
            by_end: dict[Micros, Floats] = {}
            for end, (_, vector, *_) in tasks:
                amounts = by_end.setdefault(end, np.zeros(len(self._shares.capacity)))
                amounts[vector.rows] += sign * vector.amounts
            for end, amounts in by_end.items():
                of_limits = self._of_limits([(queue, amounts)])
                self._changes.append((end, of_limits))
                for name, time in self._freed:
                    if end <= time and name in of_limits:
                        self._freed[name, time] += of_limits[name]

    def claim(self, gangs: Sequence[PendingGang], start: ReservedStart) -> None:
        """Keep what gangs need for their reserved start."""
        if start.at is not None and (needs := self._needs(gangs)):
            self._claims.append(_Claim(needs, start.at, _end(gangs, start.at), start))

    def keep(self, gangs: Sequence[PendingGang], queue: str) -> bool:
        """Keep the limit of a queue for gangs that wait for it, from the first time at which enough
        of it is left; False if no such time is known. It is kept for one gang of each queue."""
        if queue in self._kept:
            return True
        at = self._first_time(gangs)
        if at is None:
            return False
        start = ReservedStart(gangs[0].job, (), None)
        self._claims.append(_Claim(self._needs(gangs), at, _end(gangs, at), start))
        self._kept.add(queue)
        return True

    # Questions

    def is_kept(self, queue: str) -> bool:
        """Whether the limit of a queue is kept for a gang that waits for it."""
        return queue in self._kept

    def kept_times(self) -> Iterator[tuple[Micros, Micros]]:
        """From when and until when a part of a limit is kept for a gang."""
        return ((claim.at, claim.end) for claim in self._claims)

    def allow(self, gangs: Sequence[PendingGang], at: Micros) -> bool:
        """Whether gangs that start at a time stay within the limits, and leave other gangs what is
        kept for them."""
        needs, end = self._needs(gangs), _end(gangs, at)
        return all(
            self._is_left(queue, need, time)
            for queue, need in needs.items()
            for time in (at, *(claim.at for claim in self._claims_in(queue, at, end)))
        )

    def delayed_by(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """The gang that would be kept from its limit by gangs that start now."""
        needs = self._needs(gangs) if self._claims else {}
        for queue, need in needs.items():
            for claim in self._claims_in(queue, self._now, _end(gangs, self._now)):
                if not self._is_left(queue, need, claim.at):
                    return claim.start
        return None

    def headroom(self, gang: PendingGang) -> Floats:
        """Amounts that a gang may use from now on and leave others what is kept for them."""
        end, path = end_of(self._now, gang.duration), self._shares.branches[gang.queue].path()
        unlimited = np.full(len(self._shares.capacity), np.inf)
        left = (
            self._left(branch.queue.name, claim.at)
            for branch in path
            for claim in self._claims_in(branch.queue.name, self._now, end)
        )
        headroom: Floats = np.min([unlimited, *left], axis=0)
        return headroom

    def _claims_in(self, queue: str, after: Micros, before: Micros) -> Iterator[_Claim]:
        """The claims to the limit of a queue that begin between two times."""
        for claim in self._claims:
            if after < claim.at < before and queue in claim.needs:
                yield claim

    def _is_left(self, queue: str, need: Floats, time: Micros) -> bool:
        return not _exceeds(need, self._left(queue, time))

    def _left(self, queue: str, time: Micros) -> Floats:
        """What the limit of a queue leaves at a time, without what is kept for others."""
        left = self._unused(queue, time)
        for claim in self._claims:
            if claim.at <= time < claim.end and queue in claim.needs:
                left -= claim.needs[queue]
        return left

    def _unused(self, queue: str, time: Micros) -> Floats:
        """What is not used of the limit of a queue at a time."""
        branch = self._shares.branches[queue]
        unused: Floats = branch.limit - branch.used + self._freed_by(queue, time)
        return unused

    def _freed_by(self, queue: str, time: Micros) -> Floats:
        freed = self._freed.get((queue, time))
        if freed is None:
            freed = self._freed[queue, time] = np.zeros(len(self._shares.capacity))
            for each in self._at_or_below(queue):
                freed += self._running.ends_in(each).freed_by(time)
            for end, amounts in self._changes:
                if end <= time and queue in amounts:
                    freed += amounts[queue]
        return freed

    def _at_or_below(self, queue: str) -> Iterator[str]:
        branch = self._shares.branches[queue]
        for each in self._running.queues():
            if any(above is branch for above in self._shares.branches[each].path()):
                yield each

    def _first_time(self, gangs: Sequence[PendingGang]) -> Micros | None:
        """The first time at which the limits allow gangs to start; None if it is not known."""
        needs = self._needs(gangs)
        queues = {each for queue in needs for each in self._at_or_below(queue)}
        ends = {end for each in queues for end in self._running.ends_in(each).times}
        ends.update(end for end, _ in self._changes)
        # A task that should have ended by now will end soon.
        later = sorted(max(end, self._now + 1) for end in ends if end < NEVER)
        # More is unused at every later time; what is kept for others is left again at its end.
        first = bisect_left(later, x=True, key=lambda time: self._is_unused(needs, time))
        kept_until = sorted(claim.end for claim in self._claims if claim.end < NEVER)
        if first < len(later):
            for time in (later[first], *(end for end in kept_until if end > later[first])):
                if self.allow(gangs, time):
                    return time
        return None

    def _is_unused(self, needs: _Needs, time: Micros) -> bool:
        unused = ((need, self._unused(queue, time)) for queue, need in needs.items())
        return not any(_exceeds(*each) for each in unused)

    def _needs(self, gangs: Sequence[PendingGang]) -> _Needs:
        """What gangs need of each limit."""
        if not any(gang.queue in self._shares.limits.limited for gang in gangs):
            return {}
        table = self._shares.table
        return self._of_limits([(gang.queue, minimum_amounts(gang, table)) for gang in gangs])

    def _of_limits(self, amounts: Sequence[tuple[str, Floats]]) -> _Needs:
        """Amounts by queue, summed up for every queue that has a limit."""
        sums, branches = self._shares.tree.sum_up(amounts), self._shares.branches
        return {q: each for q, each in sums.items() if q in branches and branches[q].queue.limit}


def _end(gangs: Sequence[PendingGang], at: Micros) -> Micros:
    """When gangs that start at a time have all ended."""
    return max(end_of(at, gang.duration) for gang in gangs)


def _exceeds(need: Floats, left: Floats) -> bool:
    return bool(((need > left + EPSILON) & (need > 0)).any())
