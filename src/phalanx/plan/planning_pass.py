"""What the steps of one pass share: free capacity, fair shares, and what was decided so far."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from phalanx.core.reasons import QueueLimit, QueueQuota, QueueStopped
from phalanx.plan.decisions import Decision, ReleaseGathered, ReservedStart
from phalanx.plan.explain.reason_index import PendingReasons
from phalanx.plan.explain.shortage import shortage_of
from phalanx.plan.fairshare.non_preemptible import NonPreemptibleUse
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.fairshare.starvation import StarvationReserve
from phalanx.plan.fairshare.user_shares import UserShares
from phalanx.plan.lineup import Lineup
from phalanx.plan.model import OrderKey, PendingGang, RunningGang
from phalanx.plan.order import ServingOrder
from phalanx.plan.placement.amounts import gathered_amounts, minimum_amounts
from phalanx.plan.placement.gathered import gathered_occupancy
from phalanx.plan.placement.headroom import Headroom
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.preemption.search import VictimSearch
from phalanx.plan.reservations import StartReservations
from phalanx.plan.state.nodes import Floats
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.planner_state import Moment


class PlanningPass:
    def __init__(self, state: Moment) -> None:
        self.state = state
        self.now = state.now
        self.policy = state.policy
        self.table = state.table
        self.pending = state.pending
        self._stopped_by = state.layout.stopped_by
        self.shares = FairShares(state.layout, self.table)
        self.capacity = PassCapacity(state)
        self.reservations = StartReservations(state, self.capacity, self.shares)
        self.starvation = StarvationReserve(self.shares, state.running, self.now)
        gathered = [gathered_occupancy(g, self.table) for g in self.pending.gathering.values()]
        self.search = VictimSearch(state, gathered, self.shares)
        self.reasons = PendingReasons(self.pending.fork())
        self.lineup = Lineup(self)
        self.users = self._users() if OrderKey.USER in self.policy.order else None
        self.order = ServingOrder(self.policy, self.shares, self.now, self.lineup, self.users)
        self.unused_shares = state.unused_shares
        self.decisions: list[Decision] = []
        #: Gangs that start, before they grow and their decisions are made.
        self.starts: list[tuple[PlacementTrial, ...]] = []
        #: Jobs that expired, released places or were evicted; they are given nothing in this pass.
        self.excluded: set[str] = set()

    def close(self) -> None:
        """Let go of the parts of the pass. They refer to each other and to the pass, and would
        otherwise stay in memory until the garbage collector finds them."""
        vars(self).clear()

    def _users(self) -> UserShares:
        """What the users of each queue have; places that are gathered or kept count."""
        users = UserShares(self.state.running.used_by_user, self.shares)
        for gang in self.pending.gathering.values():
            users.use(gang, gathered_amounts(gang, self.table))
        for gang in self.pending.nominated.values():
            users.use(gang, minimum_amounts(gang, self.table))
        return users

    def remember_unused_shares(self) -> None:
        """Bring the unused shares up to date, and let the queues deserve them, up to their
        demand."""
        half_life = self.policy.share_half_life
        if half_life:
            self.unused_shares = self.unused_shares.after(self.shares, self.now, half_life)
            for name, branch in self.shares.branches.items():
                more = branch.deserved + self.unused_shares.of(name, self.shares)
                more = np.minimum(more, branch.settled_demand)
                np.maximum(branch.deserved, more, out=branch.deserved)

    @property
    def has_stopped_queues(self) -> bool:
        return bool(self._stopped_by)

    def stopped(self, gang: PendingGang) -> QueueStopped | None:
        """The reason of a gang whose queue, or a queue above it, is stopped."""
        queue = self._stopped_by.get(gang.queue)
        return None if queue is None else QueueStopped(queue)

    def use(self, gang: PendingGang | RunningGang, amounts: Floats) -> None:
        """Add to what the queue and the user of a gang use; negative amounts are freed."""
        self.shares.use(gang.queue, amounts)
        self.non_preemptible.use(gang, amounts)
        if self.users is None:
            self.order.changed(gang.queue)
            return
        self.users.use(gang, amounts)
        self.order.changed(gang.queue, freed=bool((amounts < 0).any()))

    def binding_limit(self, needs: Sequence[tuple[str, Floats]]) -> QueueLimit | None:
        """The limit that does not allow its queue to use so much more, all needs together."""
        limits = self.shares.limits
        if not any(queue in limits.limited for queue, _ in needs):
            return None
        binding = limits.binding(needs)
        return None if binding is None else QueueLimit(*binding)

    @cached_property
    def non_preemptible(self) -> NonPreemptibleUse:
        """What gangs that are not preemptible use; first asked for when shares are settled."""
        return NonPreemptibleUse(self.shares, self.state)

    def exceeded_quota(self, gangs: Iterable[PendingGang]) -> QueueQuota | None:
        """The quota that those of the gangs which are not preemptible would exceed together."""
        bound = (gang for gang in gangs if not gang.preemptible)
        binding = self.non_preemptible.binding((g, minimum_amounts(g, self.table)) for g in bound)
        return None if binding is None else QueueQuota(*binding)

    def lasting_work_excludes(self, gangs: Iterable[PendingGang]) -> bool:
        """Whether work without a known end leaves too little of a limit or a quota for gangs."""
        needs = [(gang, minimum_amounts(gang, self.table)) for gang in gangs]
        of_queues = [(gang.queue, need) for gang, need in needs]
        if self.shares.limits.binding(of_queues, self._lasting_use) is not None:
            return True
        bound = ((gang, need) for gang, need in needs if not gang.preemptible)
        return self.non_preemptible.binding(bound, in_the_end=True) is not None

    @cached_property
    def _lasting_use(self) -> dict[str, Floats]:
        """By queue: what running gangs without a known end use of it and of the queues below."""
        running, branches = self.state.running, self.shares.branches
        every = (*branches.values(), self.shares.root)
        used: dict[str, Floats] = {b.queue.name: np.zeros(len(b.used)) for b in every}
        for queue in running.queues():
            for branch in branches[queue].path():
                used[branch.queue.name] += running.used_without_end(queue)
        return used

    def delayed_by(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """The gang that others would delay if they started now, because they would use a part of
        the share, the limit or the quota that is kept for it."""
        return self.starvation.delayed_by(gangs) or self.reservations.limits.delayed_by(gangs)

    def headroom(self, gang: PendingGang) -> Headroom:
        """What a gang may use above its minimum."""
        limits = self.shares.limits.headroom(gang.queue)
        reserve = self.starvation.headroom(gang)
        quota, later = self.non_preemptible.headroom(gang), self.reservations.limits.headroom(gang)
        return Headroom(np.min([limits, reserve, quota, later], axis=0), self.table)

    def may_evict(self, gang: PendingGang) -> bool:
        """Whether the gang may evict others now."""
        since = gang.evicts_from
        return since is not None and since <= self.now and gang.nomination is None

    @cached_property
    def movable_queues(self) -> frozenset[str]:
        """The queues whose gangs may be moved."""
        queues = self.state.layout.queues
        return frozenset(queue.name for queue in queues if queue.consolidation)

    def may_be_helped_by_moves(self, gang: PendingGang) -> bool:
        """Whether a gang might fit if gangs of queues that allow it were moved."""
        return bool(self.movable_queues) and self.is_fragmented(gang)

    def is_fragmented(self, gang: PendingGang) -> bool:
        """Whether enough is free in total for a gang that starts alone and may evict others, and no
        limit forbids its start."""
        if not gang.strict or gang.group or not self.may_evict(gang):
            return False
        need = minimum_amounts(gang, self.table)
        is_enough = not bool((need > self.capacity.soon.free_in_sum()).any())
        return is_enough and self.binding_limit([(gang.queue, need)]) is None

    def exclude(self, job: str) -> None:
        """Give a job nothing more in this pass."""
        self.excluded.add(job)
        gang = self.pending.gangs.get(job)
        if gang is not None:
            self.reasons.explicit[job] = shortage_of((gang,), gang, self.capacity.both)

    def release_gathered(self, gang: PendingGang) -> None:
        """Decide that a gang releases the places that it has gathered."""
        self.decisions.append(ReleaseGathered(gang.job, gang.version))
        self.exclude(gang.job)
        self.capacity.release_gathered(gang)
