"""The gangs that can still be evicted in a pass, and those that are stopping already."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import compress

import numpy as np
from msgspec.structs import replace

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.placement.amounts import amounts_by_row
from phalanx.plan.preemption.candidates import VictimSet
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.preemption.reclaim import protected_rows, unprotected
from phalanx.plan.state.nodes import Bools, Floats
from phalanx.plan.state.planner_state import Moment
from phalanx.plan.state.running import EvictableOfQueue, Occupancy


class EvictableGangs:
    """Running gangs, and gangs with gathered places, less what was evicted in this pass."""

    def __init__(self, state: Moment, gathered: Iterable[Occupancy], shares: FairShares) -> None:
        self._now = state.now
        self._policy = state.policy
        self._waits = state.wait_times
        self._running = running = state.running
        self._gathered = list(gathered)
        self._shares = shares
        #: By queue: mask of its gangs that other queues may reclaim, as far as their age decides.
        self._old: dict[str, Bools] = {}
        #: Jobs that were started or evicted in this pass.
        self._excluded: set[str] = set()
        #: By short resources and version of the shares: the answer of `has_reclaimable`.
        self._has_reclaimable: dict[tuple[bytes, int], bool] = {}
        #: By job: what is left of gangs that lost single tasks in this pass.
        self._shrunk: dict[str, Occupancy] = {}
        #: Gangs with stopping tasks, since an earlier pass or in this one, and their positions.
        self.stopping: list[tuple[Occupancy, tuple[int, ...]]] = [
            (occupancy, tuple(occupancy.stopping())) for occupancy in running.stopping.values()
        ]

    @cached_property
    def lowest_priority(self) -> dict[str, int]:
        """By queue: the lowest priority of tasks that can be evicted or are stopping."""
        queues = self._running.queues()
        lowest = {q: n for q in queues if (n := self._running.evictable(q).lowest) is not None}
        for occupancy in self._gathered:
            gang = occupancy.gang
            if gang.evictable:
                lowest[gang.queue] = min(lowest.get(gang.queue, occupancy.lowest), occupancy.lowest)
        return lowest

    @cached_property
    def used_before(self) -> dict[str, Floats]:
        """By queue: what it and the queues below it used before any task was evicted."""
        running, table = self._running, self._shares.table
        return self._shares.tree.sum_up(
            (queue, amounts_by_row(resources, table))
            for amounts in (running.used, running.returning)
            for queue, resources in amounts.items()
        )

    @cached_property
    def _by_queue(self) -> dict[str, EvictableOfQueue]:
        """By queue: the gangs that can be evicted."""
        by_queue = {
            queue: evictable
            for queue in self._running.queues()
            if (evictable := self._running.evictable(queue)).gangs
        }
        for occupancy in self._gathered:
            queue = occupancy.gang.queue
            if occupancy.gang.evictable:
                known = by_queue.get(queue)
                gangs = [occupancy, *(() if known is None else known.gangs)]
                by_queue[queue] = EvictableOfQueue(gangs, None)
        return by_queue

    def has_reclaimable(self, short: Bools) -> bool:
        """Whether any gang might be reclaimed for a preemptor that is short of these resources,
        whatever that preemptor deserves: a gang of a queue that uses more than it is entitled to,
        which neither its age nor the quota of that queue protects."""
        key = (short.tobytes(), self._shares.version)
        answer = self._has_reclaimable.get(key)
        if answer is None:
            queues = self._shares.queues_above_entitlement(short) & self._by_queue.keys()
            answer = bool(self._shrunk) or any(self._has_unprotected(q, short) for q in queues)
            self._has_reclaimable[key] = answer
        return answer

    @cached_property
    def any_was_reclaimable(self) -> bool:
        """Whether any gang might be reclaimed for any preemptor, as of the first time that it is
        asked.

        A gang that is open to a preemptor which is short of several resources is open to one that
        is short of the first of them, so it is enough to ask for each resource.
        """
        rows = self._shares.tree.layout.shared_rows
        masks = np.eye(len(self._shares.shared), dtype=np.bool_)
        return any(self.has_reclaimable(masks[row]) for row in rows)

    def _has_unprotected(self, queue: str, short: Bools) -> bool:
        """Whether a queue has gangs that neither its quota nor their age protects."""
        rows = protected_rows((self._shares.branches[queue],), short)
        is_open = unprotected(self._by_queue[queue].totals, rows)
        return bool(np.count_nonzero(is_open)) and bool((is_open & self._old_of(queue)).any())

    # Protection by age

    def is_young(self, occupancy: Occupancy) -> bool:
        """Whether other queues must not reclaim the gang yet: it has run for less than
        `min_runtime`, or for less than it was pending, if it was overdue or larger than the share
        of its queue."""
        gang = occupancy.gang
        has_run = self._now - gang.started_at
        if has_run < self._policy.min_runtime:
            return True
        if has_run >= gang.waited or gang.waited < self._policy.starve_after:
            return False
        [is_large] = self._shares.exceed_division(gang.queue, occupancy.total[np.newaxis])
        return bool(is_large) or self._had_been_overdue(occupancy)

    def was_overdue(self, occupancy: Occupancy) -> bool:
        """Whether no gang at all may evict the gang yet: it was overdue, and has run for less than
        it was pending."""
        gang = occupancy.gang
        return self._now - gang.started_at < gang.waited and self._had_been_overdue(occupancy)

    def _had_been_overdue(self, occupancy: Occupancy) -> bool:
        policy, gang = self._policy, occupancy.gang
        bound = self._waits.bound(policy, gang.size, occupancy.duration)
        return bool(policy.max_wait) and gang.waited >= bound

    def _old_of(self, queue: str) -> Bools:
        """Mask of the gangs of a queue that are not young."""
        old = self._old.get(queue)
        if old is None:
            members, policy = self._by_queue[queue], self._policy
            has_run, waited = self._now - members.started_at, members.waited
            old = has_run >= policy.min_runtime
            protected = old & (has_run < waited) & (waited >= policy.starve_after)
            if protected.any():
                large = self._shares.exceed_division(queue, members.totals)
                for number in np.flatnonzero(protected & ~large).tolist():
                    protected[number] = self._had_been_overdue(members.gangs[number])
                old &= ~protected
            self._old[queue] = old
        return old

    # Candidates

    def open_to(self, own: set[str], eligibility: EvictionEligibility) -> Iterator[Occupancy]:
        """The gangs that a preemptor might evict: all gangs of the queues in `own`, and those of
        queues it may reclaim from that neither their age nor a quota protects."""
        open_queues = eligibility.reclaim.open_queues()
        for queue, members in self._by_queue.items() if own or open_queues else ():
            candidates: Iterable[Occupancy] = ()
            if queue in own:
                candidates = members.gangs
            elif queue in open_queues:
                mask = self._old_of(queue)
                if mask.any():
                    mask = mask & eligibility.reclaim.unprotected(queue, members.totals)
                    candidates = compress(members.gangs, mask)
            if self._excluded:
                candidates = (o for o in candidates if o.gang.job not in self._excluded)
            yield from candidates
        yield from self._shrunk.values()

    def exclude(self, job: str) -> None:
        """Do not evict this job in this pass."""
        self._excluded.add(job)

    def evict(self, victims: VictimSet) -> None:
        """Move the victims to the stopping gangs. What is left of a gang that lost single tasks can
        still be evicted."""
        for job, units in victims.by_gang().items():
            self._excluded.add(job)
            self._shrunk.pop(job, None)
            self.stopping += ((unit.occupancy, unit.positions) for unit in units)
            gang = units[0].gang
            if not gang.only_gathered and not any(unit.whole for unit in units):
                evicted = {position for unit in units for position in unit.positions}
                rest = tuple(task for n, task in enumerate(gang.tasks) if n not in evicted)
                self._shrunk[job] = Occupancy(replace(gang, tasks=rest), self._shares.table)
