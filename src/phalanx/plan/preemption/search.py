"""Who gives way: the cheapest set of gangs without which a claimant could start.

Free room and victims are searched together. First surplus of elastic gangs, then whole gangs; of
those the lowest priority, then the least work lost, then the fewest; of equals those of the least
important queue. Whoever turns out not to be needed stays. If nothing makes the claimant fit, nobody
is evicted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, product

import numpy as np
from msgspec.structs import replace

from phalanx.core.model import PreemptWithin
from phalanx.core.spec.job import Micros
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RunningGang
from phalanx.plan.placement.amounts import amounts_by_row, minimum_amounts
from phalanx.plan.preemption.candidates import EvictionUnit, VictimSet
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.preemption.variants import pools, variants
from phalanx.plan.preemption.victim_set import Ground, VictimSetSearch
from phalanx.plan.state.nodes import Floats
from phalanx.plan.state.running import Occupancy, RunningGangs


class VictimSearch:
    """One pass's searches. `soon` is what is free once everybody who is leaving has left."""

    def __init__(
        self,
        tenants: RunningGangs,
        holders: Iterable[Occupancy],
        shares: FairShares,
        now: Micros,
        min_runtime: Micros,
    ) -> None:
        """Gangs that only hold places are the first to give way, and lose nothing."""
        self._tenants = tenants
        self._holders = list(holders)
        self._shares = shares
        self._now = now
        self._min_runtime = min_runtime
        #: Gangs that give way already in this pass, whole or in part.
        self.spoken_for: set[str] = set()
        #: Of those that gave a part, what is left.
        self._left: dict[str, Occupancy] = {}
        #: Who is leaving, since an earlier pass or from this one on.
        self._going: list[tuple[Occupancy, Sequence[int]]] = [
            (o, o.stopping()) for o in tenants.stopping.values()
        ]
        #: By queue: what it and those below it had before anybody was told to go.
        self._had: dict[str, Floats] | None = None
        #: By queue: the lowest priority of those that can be evicted, or are leaving.
        self._lowest: dict[str, int] | None = None
        self._worth: dict[tuple[str, int], bool] = {}
        self._kin: dict[str, tuple[list[Occupancy], Floats]] | None = None

    def could_help(self, claims: Sequence[PendingGang]) -> bool:
        """Whether there is a lower priority to evict, or the claimant would stay in its share."""
        shares = self._shares
        if any(self._has_lower(claim.queue, claim.priority) for claim in claims):
            return True
        return all(
            shares.stays_within_share(
                shares.branches[claim.queue], minimum_amounts(claim, shares.table)
            )
            for claim in claims
        )

    def is_worthwhile(self, queue: str, priority: int) -> bool:
        """Whether a gang of that queue and priority might have a right to anybody, at a glance."""
        if not self._lowest_by_queue():
            return False
        worth = self._worth.get((queue, priority))
        if worth is None:
            worth = self._worth[queue, priority] = self._might_have_rights(queue, priority)
        return worth

    def _lowest_by_queue(self) -> dict[str, int]:
        if self._lowest is None:
            self._lowest = {}
            for occupancy in (*self._tenants.by_job.values(), *self._holders):
                tenant = occupancy.gang
                if tenant.evictable or tenant.job in self._tenants.stopping:
                    known = self._lowest.get(tenant.queue, occupancy.lowest)
                    self._lowest[tenant.queue] = min(known, occupancy.lowest)
        return self._lowest

    def _might_have_rights(self, queue: str, priority: int) -> bool:
        if self._has_lower(queue, priority):
            return True
        others = any(other != queue for other in self._lowest_by_queue())
        return others and not self._shares.has_full_share(self._shares.branches[queue])

    def _has_lower(self, queue: str, priority: int) -> bool:
        own = self._shares.branches[queue].queue
        equal = own.preempt_within_queue is PreemptWithin.LOWER_OR_NEWER_EQUAL
        return self._lowest_by_queue().get(queue, priority + 1) < priority + equal

    def find(self, claims: Sequence[PendingGang], ground: Ground) -> VictimSet | None:
        """Victims for a claimant, with the places it would have. All views are left as they were,
        but for those places."""
        rights = EvictionEligibility(self._shares, claims, ground.views[0])
        theirs = [
            occupancy
            for occupancy in self._here(claims, rights)
            if self._is_over(rights, occupancy, occupancy.lowest)
        ]
        surplus = [
            unit
            for occupancy in theirs
            for unit in self._surplus(occupancy)
            if self._is_over(rights, occupancy, unit.priority)
        ]
        whole = [
            self._whole(occupancy)
            for occupancy in theirs
            if occupancy.is_preemptible
            and not occupancy.gang.only_gathered
            and self._is_over(rights, occupancy, occupancy.highest)
        ]
        # Only who has a right to something is promised what others leave.
        if not rights.are_any(surplus + whole) and not self._had_rights(rights):
            return None
        for units in (surplus, surplus + whole):
            units.sort(key=self._rank)
            for some in (rights.lent(units), units):
                found = self._cheapest(claims, rights, some, ground) if some else None
                if found is not None:
                    return found
        # What others are leaving anyway may be enough, also where nobody could be evicted.
        return None if surplus or whole else self._cheapest(claims, rights, [], ground)

    def _had_rights(self, rights: EvictionEligibility) -> bool:
        """Whether the claimant could have evicted somebody who is leaving already."""
        if self._had is None:
            table, tenants = self._shares.table, self._tenants
            self._had = self._shares.tree.sum_up(
                (queue, amounts_by_row(resources, table))
                for amounts in (tenants.used, tenants.returning)
                for queue, resources in amounts.items()
            )
        for occupancy, positions in self._going:
            tenant, priorities = occupancy.gang, occupancy.priorities
            least = min(priorities[position] for position in positions)
            if rights.were_over(tenant, least, self._had, young=self._is_young(tenant)):
                return True
        return False

    def _rank(self, unit: EvictionUnit) -> tuple[object, ...]:
        """The cheapest first; of equals those of the least important queue, the smallest, and the
        newest."""
        tenant, shares = unit.occupancy.gang, self._shares
        path = shares.branches[tenant.queue].path()
        queues = tuple(branch.queue.priority for branch in path)[::-1]
        size = shares.dominant_share(unit.amounts)
        return (unit.whole, unit.priority, unit.cost, queues, size, -tenant.created_at)

    def _here(
        self, claims: Sequence[PendingGang], rights: EvictionEligibility
    ) -> Iterator[Occupancy]:
        """Those that might have to leave places which they were not told to leave in this pass."""
        own = {c.queue for c in claims if self._has_lower(c.queue, c.priority)}
        others = rights.open_queues()
        for queue, (all_of_it, totals) in self._by_queue().items() if own or others else ():
            some = all_of_it
            if queue not in own:
                mask = rights.might_go(queue, totals) if queue in others else ()
                some = list(compress(all_of_it, mask))
            yield from (o for o in some if o.gang.job not in self.spoken_for)
        yield from self._left.values()

    def _by_queue(self) -> dict[str, tuple[list[Occupancy], Floats]]:
        """All who can be evicted, and what each of them has by row."""
        if self._kin is None:
            kin: dict[str, list[Occupancy]] = {}
            for occupancy in chain(self._holders, self._tenants.by_job.values()):
                if occupancy.gang.evictable:
                    kin.setdefault(occupancy.gang.queue, []).append(occupancy)
            self._kin = {q: (some, np.array([o.total for o in some])) for q, some in kin.items()}
        return self._kin

    def give_way(self, found: VictimSet) -> None:
        """What was found goes; what is left of a gang that gave tasks may have to give more."""
        for job, units in found.by_gang().items():
            self.spoken_for.add(job)
            self._left.pop(job, None)
            self._going += ((unit.occupancy, unit.positions) for unit in units)
            if not any(unit.whole or unit.occupancy.gang.only_gathered for unit in units):
                tenant = units[0].occupancy.gang
                gone = {position for unit in units for position in unit.positions}
                rest = tuple(place for n, place in enumerate(tenant.tasks) if n not in gone)
                self._left[job] = Occupancy(replace(tenant, tasks=rest), self._shares.table)

    def _is_over(self, rights: EvictionEligibility, occupancy: Occupancy, priority: int) -> bool:
        return rights.over(occupancy, priority, young=self._is_young(occupancy.gang))

    def _cheapest(
        self,
        claims: Sequence[PendingGang],
        rights: EvictionEligibility,
        units: list[EvictionUnit],
        ground: Ground,
    ) -> VictimSet | None:
        """A gang that has to be in one domain is tried in each of them."""
        best: tuple[tuple[bool, int, float, int], VictimSetSearch] | None = None
        for pool, variant in product(pools(rights, units), variants(claims, ground.views[0])):
            attempt = VictimSetSearch(variant, rights, pool, ground)
            found = attempt.run()
            if found is None:
                continue
            found.undo()
            if best is None or found.price < best[0]:
                best = (found.price, attempt)
        return None if best is None else best[1].again()

    def _is_young(self, tenant: RunningGang) -> bool:
        return self._now - tenant.started_at < self._min_runtime

    def _surplus(self, occupancy: Occupancy) -> Iterator[EvictionUnit]:
        """Tasks that the gang could go on without, one by one, its last ones first."""
        tenant = occupancy.gang
        if tenant.only_gathered:
            yield EvictionUnit(occupancy, tuple(range(len(tenant.tasks))), whole=False, cost=0.0)
            return
        if len(tenant.tasks) <= tenant.min_available:
            return
        minimum = dict(tenant.role_min)
        spare: dict[str, int] = {}
        for place in tenant.tasks:
            spare[place.role] = spare.get(place.role, -minimum.get(place.role, 0)) + 1
        # All that are offered on one node can go together.
        offered: dict[tuple[str, str], int] = {}
        for position in range(len(tenant.tasks) - 1, -1, -1):
            place = tenant.tasks[position]
            there = offered.get((place.role, place.node), 0)
            most = min(spare[place.role], len(tenant.tasks) - tenant.min_available)
            if place.preemptible and not place.stopping and there < most:
                offered[place.role, place.node] = there + 1
                cost = occupancy.cost(self._now, (position,))
                yield EvictionUnit(occupancy, (position,), whole=False, cost=cost)

    def _whole(self, occupancy: Occupancy) -> EvictionUnit:
        positions = tuple(range(len(occupancy.nodes)))
        return EvictionUnit(occupancy, positions, whole=True, cost=occupancy.cost(self._now))
