"""Which gangs are served in a pass, and which are not worth it.

Free capacity only shrinks in a pass, so a gang that does not fit at first does not fit later in it.
Of those gangs only the first few are served: others may be evicted for them, or held back.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from phalanx.core.reasons import QueueLimit, Reason, WaitingForGroup
from phalanx.core.time_units import Micros
from phalanx.plan.explain.shortage import never_fits
from phalanx.plan.fairshare.demand import settle_shares
from phalanx.plan.first_gangs import deserve_starving, first_of_each, survey
from phalanx.plan.groups import GangGroup, groups_of
from phalanx.plan.model import PendingGang, TaskRequest
from phalanx.plan.order import Candidate, Prospect
from phalanx.plan.overdue_gangs import has_end, stuck_gangs
from phalanx.plan.pending import Bucket, KeyedBucket, is_simple, is_starving

if TYPE_CHECKING:
    from phalanx.plan.planning_pass import PlanningPass


class Lineup:
    def __init__(self, work: "PlanningPass") -> None:
        self._work = work
        #: Requests of all buckets, and the labels of the domains that they require.
        self.requests: set[TaskRequest] = set()
        self.domains: set[str] = set()
        #: Buckets that are served although their gangs do not fit.
        self._served_short: set[Bucket] = set()
        #: Jobs among them that have their turn to evict others, and whether more could have.
        self.turns: set[str] = set()
        self.has_left_out = False
        #: Buckets whose gangs must not start now, or never fit.
        self._never_start = work.state.never_fitting()
        self._orders = work.state.in_order()
        for order in self._orders.values() if work.has_stopped_queues else ():
            buckets = [bucket for _, _, bucket in order.keyed]
            if (stopped := work.stopped(buckets[0].first)) is not None:
                self._never_start.update(dict.fromkeys(buckets, stopped))
        for bucket, reason in self._never_start.items():
            work.reasons.of_bucket(bucket, 0, reason)
        #: All groups, each with the reason why it must not start now, or never fits.
        self._groups = [(group, self._never_starts(group)) for group in groups_of(work.pending)]
        complete = (group.members for group, reason in self._groups if reason is None)
        self._survey = survey(work.state, self._never_start, complete)
        #: Jobs that are overdue: of each queue one gang, or the gangs of a group; besides one that
        #: is stuck, another one. They go before all others.
        self.overdue = self._survey.overdue
        #: Those of them that are stuck, and, if there are any, those that go before the stuck ones.
        self.stuck: set[str] = set()
        self.ahead: set[str] = set()
        #: Those that have a reserved start, and its time.
        self.promised: dict[str, Micros] = {}

    def settle_shares(self) -> None:
        """Set what every queue deserves. Gangs that must not start or grow do not count.

        A queue whose first gang is starving deserves at least that gang.
        """
        work = self._work
        growing = [g for g in work.pending.growing.values() if work.stopped(g) is not None]
        settle_shares(work.shares, work.state, self._never_start, work.excluded, growing)
        work.remember_unused_shares()
        deserve_starving(work.shares, work.state, self._survey.firsts)

    def fill(self) -> None:
        """Add the first gang of every bucket that is served, and all complete groups, to the order
        of the pass."""
        work = self._work
        self._pass_turns_on()
        most = work.capacity.most
        for key in {key for order in self._orders.values() for key in order.fit_keys}:
            work.capacity.most_fit(*key)
        fitting = {queue: order.fitting(most) for queue, order in self._orders.items()}
        for queue in {bucket.first.queue for bucket in self._never_start}:
            fitting[queue] = [e for e in fitting[queue] if e[2] not in self._never_start]
        self.requests.update(request for request, _ in most)
        self.domains.update(label for _, label in most if label is not None)
        self._served_short = self._worth_serving()
        short = [
            bucket.keyed(work.policy, work.now)
            for bucket in self._served_short
            if bucket.need > most[bucket.fit_key] and bucket not in self._never_start
        ]
        work.order.add_buckets(fitting, short)
        for group, reason in self._groups:
            if reason is None:
                work.order.add_group(group.members)
            else:
                work.reasons.explicit.update((member.job, reason) for member in group.members)

    def _pass_turns_on(self) -> None:
        """Let another gang of a queue be overdue besides a stuck one. Gangs with a time limit go
        before all stuck ones, because they free the nodes of those again."""
        overdue_in = self._survey.overdue_in
        turns = [*stuck_gangs(self._work, overdue_in)]
        for stuck, other in turns:
            self.stuck.update(gang.job for gang in stuck)
            self.overdue.update(gang.job for gang in other)
        if turns:
            able = [oldest for oldest, _ in overdue_in if oldest[0].job not in self.stuck]
            able += (other for _, other in turns)
            self.ahead.update(gang.job for gangs in able if has_end(gangs) for gang in gangs)
        promised = self._work.reservations.promised_times().items()
        self.promised.update((job, at) for job, at in promised if job in self.overdue)

    def _worth_serving(self) -> set[Bucket]:
        """Buckets that are served even if their gangs do not fit: the first ones of all, and the
        first of every queue, that may evict others or could be given a reserved start; and the
        first ones that have not had their turn to evict others in this round."""
        work, keyed, firsts = self._work, self._survey.keyed, self._survey.firsts
        policy, pending = work.policy, work.pending
        if not work.state.running.ending or not policy.backfill:
            keyed = {
                queue: [each for each in buckets if self._may_take(each[2].head)]
                for queue, buckets in keyed.items()
            }
            firsts = first_of_each(keyed.values())
        best = islice(heapq.merge(*keyed.values()), 2 * policy.heads)
        with_turn = heapq.merge(*(self._with_turn(*each) for each in keyed.items()))
        turns = list(islice(with_turn, policy.searches + 1))
        self.has_left_out = len(turns) > policy.searches
        turns = turns[: policy.searches]
        self.turns = {bucket.head.job for _, _, bucket in turns}
        promised = (*work.reservations.promised(), *(pending.gangs[job] for job in self.overdue))
        served = {bucket for _, _, bucket in (*best, *turns)}
        return served.union(firsts, filter(None, map(pending.bucket_of, promised)))

    def _may_take(self, gang: PendingGang) -> bool:
        """Whether others may be evicted, moved or held back for a gang, as far as a glance can
        tell."""
        return is_starving(self._work.policy, gang, self._work.now) or self._may_evict(gang)

    def _may_evict(self, gang: PendingGang) -> bool:
        """Whether others may be evicted or moved for a gang, as far as a glance can tell."""
        work = self._work
        if work.may_be_helped_by_moves(gang):
            return True
        return work.search.might_find(gang.queue, gang.priority) and work.may_evict(gang)

    def _with_turn(self, queue: str, keyed: Iterable[KeyedBucket]) -> Iterator[KeyedBucket]:
        """The buckets of a queue whose first gang may evict others and has not had its turn in this
        round."""
        search, may_evict = self._work.search, self._work.may_evict
        priorities, done = self._orders[queue].priorities, self._work.state.cursor.done
        able = {each for each in priorities if search.might_find(queue, each)}
        for each in keyed if able else ():
            first = each[2].first
            is_able = first.priority in able and may_evict(first)
            if is_able and not (done and each[2].head.job in done):
                yield each

    def _never_starts(self, group: GangGroup) -> Reason | None:
        """Why a group must not start now, or never fits."""
        work = self._work
        reason: Reason | None = WaitingForGroup(group.missing) if group.missing else None
        for member in group.members:
            reason = reason or work.stopped(member)
        return reason or never_fits(group.members, work.state.empty)

    def has_places(self, bucket: Bucket) -> bool:
        """Whether enough is free for a gang of the bucket, as far as a count of places can tell."""
        return self._work.capacity.has_places(bucket.fit_key, bucket.need)

    def leaves_only_promises(self) -> bool:
        """Whether for gangs that do not fit nothing can be done, except to keep the starts that are
        reserved for them."""
        work, reservations = self._work, self._work.reservations
        if self.turns or not work.state.cursor.is_at_start or work.movable_queues:
            return False
        if not all(map(reservations.is_reserved, self.overdue)):
            return False
        if reservations.is_full:
            return True
        return all(reservations.is_reserved(bucket.head.job) for bucket in self._served_short)

    def prospect(self, candidate: Candidate) -> Prospect:
        """Whether a candidate is served, or too little is free for it or it would delay a reserved
        start, and nothing can be done about it.

        This settles most pending gangs.
        """
        work, bucket, gang = self._work, candidate.bucket, candidate.last
        if bucket is None:
            return Prospect.OPEN
        may_fit, is_served = self.has_places(bucket), bucket in self._served_short
        if not may_fit and not candidate.position and not is_served:
            return Prospect.HOPELESS
        limit = self._hopeless_limit(bucket, gang) if may_fit or is_served else None
        if limit is not None:
            work.reasons.of_bucket(bucket, candidate.position, limit)
            return Prospect.HOPELESS
        if may_fit and (not bucket.need or self._fits_beside_reserved(gang)):
            return Prospect.OPEN
        if is_served and (self._can_be_helped(gang) or work.reservations.has_promise(bucket)):
            return Prospect.OPEN
        held_back = None
        if may_fit:
            delayed = work.delayed_by((gang,))
            held_back = work.reservations.held_back((gang,), delayed)
        # Without a reason of its own, the bucket is explained by what is short.
        if candidate.position or held_back is not None:
            work.reasons.of_bucket(bucket, candidate.position, held_back)
        return Prospect.HOPELESS if held_back is None else Prospect.HELD_BACK

    def _hopeless_limit(self, bucket: Bucket, gang: PendingGang) -> QueueLimit | None:
        """The limit that a simple gang waits for, if that is kept for another gang and nothing can
        be done about it, unless an eviction for another gang frees it in this pass."""
        work = self._work
        if gang.queue not in work.shares.limits.limited or not is_simple(gang) or not bucket.need:
            return None
        if not gang.preemptible or gang.job in self.overdue or gang.job in work.excluded:
            return None
        limit = work.binding_limit([(gang.queue, bucket.amounts(work.table)[0])])
        reservations = work.reservations
        if limit is None or not reservations.limits.is_kept(limit.queue):
            return None
        if reservations.has_promise(bucket):
            return None
        # Evictions in other queues do not help against the limit of its own queue.
        may_evict = limit.queue != gang.queue or work.search.has_lower(gang.queue, gang.priority)
        return None if may_evict and self._may_evict(gang) else limit

    def drop_hopeless(self, buckets: list[KeyedBucket]) -> None:
        """Remove the last buckets as long as too little is free for their gangs, as far as places
        were counted, and nothing can be done about it."""
        most, served_short = self._work.capacity.most, self._served_short
        while buckets:
            bucket = buckets[-1][2]
            fits = most.get(bucket.fit_key, bucket.need)
            if bucket.need <= fits or bucket in served_short:
                return
            buckets.pop()

    def _can_be_helped(self, gang: PendingGang) -> bool:
        """Whether a start, or a part of its queue's share, can be reserved for a gang that does not
        fit, or others may be evicted for it."""
        work, reservations = self._work, self._work.reservations
        if gang.job in self.overdue or reservations.is_promised(gang) or not reservations.is_full:
            return True
        if self._may_evict(gang):
            return True
        return is_starving(work.policy, gang, work.now) and work.starvation.can_reserve(gang)

    def _fits_beside_reserved(self, gang: PendingGang) -> bool:
        """Whether a simple gang fits without delaying a reserved start or a starving gang. True if
        that takes more than to count the places."""
        work = self._work
        if gang.queue in work.shares.limits.limited or gang.job in work.excluded:
            return True
        is_delaying = work.delayed_by((gang,)) is not None
        return not is_delaying and work.reservations.fits_beside(gang)
