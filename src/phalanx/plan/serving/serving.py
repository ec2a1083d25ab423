"""One candidate after the other: start it, evict others for it, gather places, or explain why it
stays pending and reserve a start for it."""

from collections.abc import Sequence
from itertools import chain

from phalanx.core.reasons import (
    BelowMinResources,
    HeldBack,
    QueueLimit,
    QueueQuota,
    Reason,
    WaitingForVictims,
)
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.explain.shortage import shortage_of
from phalanx.plan.model import PendingGang
from phalanx.plan.order import Candidate
from phalanx.plan.pending import is_simple, is_starving
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.serving.consolidation import Consolidation
from phalanx.plan.serving.evictions import Evictions
from phalanx.plan.serving.gate import closed_gate
from phalanx.plan.serving.gathering import gather
from phalanx.plan.serving.starts import minimum_needs, start

#: What blocks one gang of a group blocks all of them.
_SHARED_REASONS = (BelowMinResources, WaitingForVictims, HeldBack, QueueLimit, QueueQuota)


class Serving:
    def __init__(self, work: PlanningPass) -> None:
        self._work = work
        self.evictions = Evictions(work)
        self._consolidation = Consolidation(work)
        #: The version of the free capacity for which `_is_exhausted` was answered, and the answer.
        self._exhausted = (-1, False)

    def is_over(self) -> bool:
        """Whether all gangs that are left stay pending, and nothing but the starts that the last
        plan reserved has to be settled for them. These are then kept, all at once."""
        work = self._work
        if not self._is_exhausted() or not work.lineup.leaves_only_promises():
            return False
        if any(job in work.pending.gangs for job in work.excluded):
            return False
        may_grow = work.pending.growing or any(t.has_unplaced for t in chain(*work.starts))
        if may_grow or not all(map(self._is_decided_by_places, work.reservations.promised())):
            return False
        if not work.reservations.keep_promises():
            return False
        for candidate in work.order.left():
            self._explain(candidate, None)
        return True

    def _is_exhausted(self) -> bool:
        """Whether too little is free for all gangs that are left. Asked again only after capacity
        was taken or freed."""
        work = self._work
        version = work.capacity.present.version
        if version != self._exhausted[0]:
            self._exhausted = (version, work.order.is_exhausted())
        return self._exhausted[1]

    def _is_decided_by_places(self, gang: PendingGang) -> bool:
        """Whether the number of free places decides if a gang starts or has its start kept."""
        work, bucket = self._work, self._work.pending.bucket_of(gang)
        if bucket is None or not bucket.need:
            return False
        return gang.preemptible and gang.queue not in work.shares.limits.limited

    def serve(self, candidate: Candidate) -> None:
        work, gangs = self._work, candidate.gangs
        if work.excluded and any(gang.job in work.excluded for gang in gangs):
            self._serve_next(candidate)
            return
        if self._is_short(candidate):
            self._serve_short(candidate)
            return
        nominated = [gang for gang in gangs if gang.nomination is not None]
        closed: Reason | None = closed_gate(work, gangs)
        if closed is None and not nominated and (quota := work.exceeded_quota(gangs)) is not None:
            closed = quota
            self._reserve_bound(gangs, quota)
        if closed is not None:
            self._explain(candidate, closed)
            return
        if nominated:
            work.reservations.note_change()
        for gang in nominated:
            work.capacity.stop_keeping(gang.job)
            work.use(gang, -minimum_amounts(gang, work.table))
        # A nominated gang is not held back: the capacity is kept for it.
        delayed = None if nominated else work.delayed_by(gangs)
        if delayed is None and self._place(gangs):
            self._serve_next(candidate)
            return
        reason = self._obstacle(gangs, delayed)
        for gang in nominated:
            reason = self._keep_capacity(gang) or reason
        self._explain(candidate, reason)
        if isinstance(reason, HeldBack):
            work.order.add_shorter(candidate)

    def _is_short(self, candidate: Candidate) -> bool:
        """Whether a single gang certainly does not fit now, because too few places are free."""
        bucket = candidate.bucket
        if bucket is None or not bucket.need or not candidate.last.preemptible:
            return False
        return not self._work.capacity.has_places(bucket.fit_key, bucket.need)

    def _serve_short(self, candidate: Candidate) -> None:
        """Serve a gang for which too few places are free: others are evicted or moved for it, or a
        start is reserved. The result is that of `_place` and `_obstacle`, without their trials."""
        work, gangs = self._work, candidate.gangs
        may_evict = self.evictions.is_worth_a_search(gangs)
        may_be_helped = may_evict or bool(work.movable_queues)
        if may_be_helped and work.delayed_by(gangs) is None:
            moves = self._consolidation.move(gangs)
            if moves or (may_evict and self.evictions.search(gangs)):
                self._serve_next(candidate)
                return
        limit = work.binding_limit(minimum_needs(work, gangs))
        if limit is None:
            self._reserve_start(gangs)
        else:
            self._keep_limit(gangs, limit)
        self._explain(candidate, limit)

    def _place(self, gangs: Sequence[PendingGang]) -> bool:
        work = self._work
        return (
            start(work, gangs)
            or self._consolidation.move(gangs)
            or self.evictions.evict(gangs)
            or gather(work, gangs)
        )

    def _serve_next(self, candidate: Candidate) -> None:
        """Go on with the next gang of the bucket."""
        if candidate.bucket is not None:
            self._work.reasons.mark_served(candidate.bucket, candidate.position)
            self._work.order.add_bucket(candidate.bucket, candidate.position + 1)

    def _keep_capacity(self, gang: PendingGang) -> Reason | None:
        """Keep the capacity of a nominated gang that cannot start yet; why it cannot."""
        work = self._work
        work.capacity.keep(gang.job)
        work.reservations.note_change()
        work.use(gang, minimum_amounts(gang, work.table))
        victims = gang.nomination.victims if gang.nomination is not None else ()
        stopping = work.state.running.stopping_tasks().intersection(victims)
        return WaitingForVictims(tuple(sorted(stopping))) if stopping else None

    # Why a candidate stays pending

    def _obstacle(
        self, gangs: Sequence[PendingGang], delayed: ReservedStart | None
    ) -> Reason | None:
        """Why a candidate cannot start; None: too little is free. In that case a start is reserved
        for it. `delayed` is a gang that it would delay."""
        work, gang = self._work, gangs[0]
        limit = work.binding_limit(minimum_needs(work, gangs))
        if limit is not None:
            self._keep_limit(gangs, limit)
            return limit
        held_back = work.reservations.held_back(gangs, delayed)
        if held_back is not None:
            if not work.starvation.delayed_at_bound(gangs):
                work.reservations.keep_promise(gangs)
            return held_back
        if all(each.strict and each.nomination is None for each in gangs):
            self._reserve_start(gangs)
        if len(gangs) > 1 or not is_simple(gang):
            return shortage_of(gangs, gang, work.capacity.both)
        return None

    def _keep_limit(self, gangs: Sequence[PendingGang], limit: QueueLimit) -> None:
        """Keep the reserved start of a candidate that waits for a limit, or else that limit."""
        work = self._work
        if work.starvation.delayed_at_bound(gangs):
            return
        if not work.reservations.keep_limit(gangs, limit.queue):
            self._reserve_bound(gangs, limit)

    def _reserve_bound(self, gangs: Sequence[PendingGang], bound: QueueLimit | QueueQuota) -> None:
        """Reserve the limit or quota that a candidate would exceed, if it is overdue and not stuck,
        unless work without a known end uses too much of it."""
        work, job = self._work, gangs[0].job
        is_first = job in work.lineup.overdue and job not in work.lineup.stuck
        if is_first and not work.lasting_work_excludes(gangs):
            work.starvation.reserve_bound(gangs[0], bound)

    def _reserve_start(self, gangs: Sequence[PendingGang]) -> None:
        """Reserve a start, unless the limit or quota that the gangs would use is kept for another
        gang at an unknown time."""
        work = self._work
        if work.starvation.delayed_at_bound(gangs):
            return
        is_overdue = gangs[0].job in work.lineup.overdue
        reserved = work.reservations.reserve(gangs, is_overdue=is_overdue)
        if len(gangs) == 1 and is_starving(work.policy, gangs[0], work.now):
            work.starvation.reserve(gangs[0], None if reserved is None else reserved.at)

    def _explain(self, candidate: Candidate, reason: Reason | None) -> None:
        """Give the reason to all gangs of the bucket from this one on, or to every member."""
        work, gangs = self._work, candidate.gangs
        if candidate.bucket is not None:
            work.reasons.of_bucket(candidate.bucket, candidate.position, reason)
            return
        for gang in gangs:
            # Members share what blocks the group; what is short is stated for each of them.
            if isinstance(reason, _SHARED_REASONS):
                work.reasons.explicit[gang.job] = reason
            else:
                work.reasons.explicit[gang.job] = shortage_of(gangs, gang, work.capacity.both)
