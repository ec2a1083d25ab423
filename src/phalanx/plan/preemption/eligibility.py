"""Whom a claimant may evict: lower priorities in its own queue; in other queues, whoever has what
its own deserves.

Taking back must make the sharing fairer, or it would be taken back in turn without end.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from phalanx.core.model import PreemptWithin, ReclaimFrom
from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RunningGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.preemption.candidates import EvictionUnit
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Bools, Floats
from phalanx.plan.state.running import Occupancy

_HAIR = 1e-6


class EvictionEligibility:
    def __init__(
        self, shares: FairShares, claims: Sequence[PendingGang], soon: FreeCapacity
    ) -> None:
        self._shares = shares
        self._claims = claims
        self._needs = [(claim, minimum_amounts(claim, shares.table)) for claim in claims]
        #: A group has the rights of its least important, latest member.
        self._priority = min(claim.priority for claim in claims)
        self._created_at = max(claim.created_at for claim in claims)
        #: By queue: what the claimant takes of it and those below it.
        self._wanted = self._up_the_tree(self._needs)
        self._lacks = self._what_is_short(soon)
        #: By ours and theirs: whether it may be taken from, as long as nothing has been taken yet.
        self._open: dict[tuple[str, str], bool] = {}
        #: By queue: the resources of which it has no more than its quota, and that quota.
        self._owed: dict[str, list[tuple[int, float]]] = {}
        #: By queue, priority and age: whether such tenants may be preempted, or reclaimed from.
        self._over: dict[tuple[str, int, bool, bool], tuple[bool, bool]] = {}
        #: By queue: what the victims that are chosen free in it and below it.
        self._freed: dict[str, Floats] = {}

    def _up_the_tree(self, taken: Iterable[tuple[PendingGang, Floats]]) -> dict[str, Floats]:
        more: dict[str, Floats] = {}
        for claim, amounts in taken:
            for branch in self._shares.branches[claim.queue].path():
                name = branch.queue.name
                more[name] = more.get(name, 0.0) + amounts
        return more

    def free(self, unit: EvictionUnit, sign: int = 1) -> None:
        """Somebody is chosen to go; with -1, is to stay after all."""
        amounts = sign * unit.amounts
        for branch in self._shares.branches[unit.occupancy.gang.queue].path():
            name = branch.queue.name
            self._freed[name] = self._freed.get(name, 0.0) + amounts

    def _left(self, branch: QueueBranch) -> Floats:
        """What a queue uses without the victims."""
        return branch.used - self._freed.get(branch.queue.name, 0.0)

    def _what_is_short(self, soon: FreeCapacity) -> Bools:
        """The resources that the claimant lacks; if none is short in sum, all that it takes."""
        total = sum(need for _, need in self._needs)
        free = np.maximum(soon.free[:, soon.table.open], 0).sum(axis=1)
        takes = (np.asarray(total) > 0) & self._shares.shared
        short: Bools = takes & (np.asarray(total) > free)
        return short if short.any() else takes

    def open_queues(self) -> set[str]:
        """The queues that any gang of the claimant may take from."""
        ours = {claim.queue for claim in self._claims}
        return {
            theirs
            for theirs in self._shares.queues_above_share(self._lacks)
            if any(self._is_open(queue, theirs) for queue in ours)
        }

    def might_go(self, queue: str, totals: Floats) -> Bools:
        """For gangs of another queue, by what each has: whether that is not all owed to them."""
        mask = np.ones(len(totals), np.bool_)
        for row, quota in self._what_is_owed(queue):
            mask &= (totals[:, row] <= 0) | (totals[:, row] > quota)
        return mask

    def over(self, occupancy: Occupancy, priority: int, *, young: bool) -> bool:
        """Whether any gang of the claimant may evict tasks of that priority, to begin with."""
        tenant = occupancy.gang
        newer = tenant.created_at > self._created_at
        kind = (tenant.queue, priority, young, newer)
        known = self._over.get(kind)
        if known is None or len(self._claims) > 1:
            known = self._over[kind] = (
                any(self._preempts(claim, tenant, priority) for claim in self._claims),
                not young
                and any(self._reclaims(claim, tenant, priority) for claim in self._claims),
            )
        preempts, reclaims = known
        return preempts or (reclaims and self._might_go(occupancy))

    def _preempts(self, claim: PendingGang, tenant: RunningGang, priority: int) -> bool:
        if claim.queue != tenant.queue:
            return False
        policy = self._shares.branches[claim.queue].queue.preempt_within_queue
        if policy is PreemptWithin.NEVER:
            return False
        if priority < self._priority:
            return True
        newer = priority == self._priority and tenant.created_at > self._created_at
        return newer and policy is PreemptWithin.LOWER_OR_NEWER_EQUAL

    def _reclaims(self, claim: PendingGang, tenant: RunningGang, priority: int) -> bool:
        return self._is_open(claim.queue, tenant.queue) and self._is_below(claim, priority)

    def _is_open(self, ours: str, theirs: str) -> bool:
        """Whether one queue may take from the other, which has too much."""
        known = self._open.get((ours, theirs))
        if known is None:
            known = self._open[ours, theirs] = self._may_ask(ours, theirs) and all(
                map(self._is_over, self._shares.tree.sides(ours, theirs)[1])
            )
        return known

    def _may_ask(self, ours: str, theirs: str) -> bool:
        """Whether the two queues let one take from the other."""
        policy = self._shares.branches[ours].queue.reclaim_from_siblings
        if ours == theirs or policy is ReclaimFrom.NEVER:
            return False
        mine, others = self._shares.tree.sides(ours, theirs)
        return bool(mine) and all(branch.queue.reclaimable for branch in others)

    def _is_below(self, claim: PendingGang, priority: int) -> bool:
        """Whether priority does not matter to the claimant's queue, or is lower there."""
        policy = self._shares.branches[claim.queue].queue.reclaim_from_siblings
        return policy is not ReclaimFrom.LOWER_PRIORITY or priority < self._priority

    def were_over(
        self, tenant: RunningGang, priority: int, had: Mapping[str, Floats], *, young: bool
    ) -> bool:
        """Whether the claimant could have evicted who is leaving, with what queues had before."""
        for claim in self._claims:
            if self._preempts(claim, tenant, priority):
                return True
            if young or not self._is_below(claim, priority):
                continue
            if self._may_ask(claim.queue, tenant.queue):
                _, theirs = self._shares.tree.sides(claim.queue, tenant.queue)
                over = [had.get(b.queue.name, 0.0) > b.deserved + _HAIR for b in theirs]
                if all(bool((some & self._lacks).any()) for some in over):
                    return self._may_reclaim_from(tenant.queue)
        return False

    def are_any(self, units: Iterable[EvictionUnit]) -> bool:
        """Whether the claimant, as things are, has a right to anything of these."""
        some = list(units)
        queues = {unit.occupancy.gang.queue for unit in some}
        return any(map(self.is_preempted, some)) or any(map(self._may_reclaim_from, queues))

    def _what_is_owed(self, queue: str) -> list[tuple[int, float]]:
        """Of what it has no more than its quota: a gang may go only if it is itself more."""
        owed = self._owed.get(queue)
        if owed is None:
            _, theirs = self._shares.tree.sides(self._claims[0].queue, queue)
            owed = self._owed[queue] = [
                (row, float(branch.quota[row]))
                for branch in theirs
                for row in np.flatnonzero(self._lacks & (branch.quota > 0)).tolist()
                if branch.used[row] - _HAIR <= branch.quota[row]
            ]
        return owed

    def _might_go(self, occupancy: Occupancy) -> bool:
        owed = self._what_is_owed(occupancy.gang.queue)
        return not any(0 < occupancy.total[row] <= quota for row, quota in owed)

    def _is_over(self, branch: QueueBranch, given: Floats | float = 0.0) -> bool:
        """Whether a queue has more than it deserves of something that the claimant lacks."""
        over = self._left(branch) + given > branch.deserved + _HAIR
        return bool((over & self._lacks).any())

    def lent(self, units: list[EvictionUnit]) -> list[EvictionUnit]:
        """What others have of the claimant's quota, if there is a choice between that and its own.

        A quota is given back before anybody of the claimant's queue goes.
        """
        others = [unit for unit in units if not self.is_preempted(unit)]
        if len(others) == len(units):
            return []
        queues = {unit.occupancy.gang.queue for unit in others}
        return others if any(map(self._is_owed_by, queues)) else []

    def _is_owed_by(self, queue: str) -> bool:
        """Whether the claimant's side stays within its quota, where it meets that queue's."""
        for claim, need in self._needs:
            ours, _ = self._shares.tree.sides(claim.queue, queue)
            takes = (need > 0) & self._shares.shared
            if not ours or bool((ours[-1].used + need > ours[-1].quota + _HAIR)[takes].any()):
                return False
        return True

    def may_add(self, unit: EvictionUnit, own: Iterable[EvictionUnit] = ()) -> bool:
        """Whether this unit may go, after those that were chosen. Some of them are of its own gang:
        what they give, it gives itself."""
        if self.is_preempted(unit):
            return True
        given = sum((other.amounts for other in own), np.zeros(len(self._lacks)))
        theirs = self._shares.tree.sides(self._claims[0].queue, unit.occupancy.gang.queue)[1]
        return all(
            self._is_over(branch, given) and not self._breaks_quota(branch, unit, given)
            for branch in theirs
        )

    def _breaks_quota(self, branch: QueueBranch, unit: EvictionUnit, given: Floats) -> bool:
        """Whether the queue would have less than its quota of something that the claimant lacks.

        A single gang that is larger than the quota could never go otherwise.
        """
        goes = unit.amounts
        owed = (branch.quota > 0) & self._lacks & (goes > 0)
        left = self._left(branch) - goes + (given if unit.whole else 0.0)
        below = left < branch.quota - _HAIR
        return bool((owed & below & (unit.occupancy.total <= branch.quota + _HAIR)).any())

    def suffice(self, chosen: Iterable[EvictionUnit]) -> bool:
        """Whether the claimant would be within its limits, and its rights, without these."""
        units = list(chosen)
        if not self._is_within_limits(self._wanted):
            return False
        reclaimed = [unit for unit in units if not self.is_preempted(unit)]
        if not reclaimed:
            return True
        queues = {unit.occupancy.gang.queue for unit in reclaimed}
        return all(map(self._may_reclaim_from, queues)) and self._is_fairer()

    def is_preempted(self, unit: EvictionUnit) -> bool:
        tenant, priority = unit.occupancy.gang, unit.priority
        return any(self._preempts(claim, tenant, priority) for claim in self._claims)

    def allow(self, trials: Iterable[PlacementTrial]) -> bool:
        """Whether the limits hold for what was placed, where that may be more than was needed."""
        return self._is_within_limits(self._up_the_tree((t.gang, t.amounts()) for t in trials))

    def _is_within_limits(self, wanted: Mapping[str, Floats]) -> bool:
        for name, need in wanted.items():
            branch = self._shares.branches.get(name, self._shares.root)
            after = self._left(branch) + need
            if bool(((after > branch.limit + _HAIR) & (need > 0)).any()):
                return False
        return True

    def _may_reclaim_from(self, queue: str) -> bool:
        """Whether the claimant's side stays within what it deserves, up to where they meet."""
        for claim in self._claims:
            ours, _ = self._shares.tree.sides(claim.queue, queue)
            for branch in ours:
                need = self._wanted[branch.queue.name]
                takes = (need > 0) & self._shares.shared
                after = self._left(branch) + need
                if bool((after > branch.deserved + _HAIR)[takes].any()):
                    return False
        return True

    def _is_fairer(self) -> bool:
        change = dict(self._wanted)
        for queue, freed in self._freed.items():
            change[queue] = change.get(queue, 0.0) - freed
        return self._shares.excess(change) < self._shares.excess({}) - _HAIR * 1e-3
