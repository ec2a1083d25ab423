"""Who gives way: the cheapest set of gangs without which a claimant could start.

Free room and victims are searched together. First surplus of elastic gangs, then whole gangs; of
those the lowest priority, then the least work lost, then the fewest; of equals those of the least
important queue. Whoever turns out not to be needed stays. If nothing makes the claimant fit, nobody
is evicted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, product
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.model import PreemptWithin
from phalanx.core.spec import Micros, PackMode
from phalanx.plan.model import Claim, Part, Tenant
from phalanx.plan.nodes import Bools, Floats
from phalanx.plan.openings import Sought, openings
from phalanx.plan.place import Trial, hardness, need_of, together
from phalanx.plan.rights import Rights
from phalanx.plan.share import Shares
from phalanx.plan.tenants import Occupancy, Tenants
from phalanx.plan.units import Found, Unit, is_enough, price
from phalanx.plan.variants import pools, variants
from phalanx.plan.view import View

#: At most this many single gangs are tried in a search.
_SINGLES = 16


class Ground(NamedTuple):
    """Where a claimant could go: what is free soon, and futures that must have room as well."""

    views: Sequence[View]
    only: Bools | None = None  #: on these nodes


class Search:
    """One pass's searches. `soon` is what is free once everybody who is leaving has left."""

    def __init__(
        self,
        tenants: Tenants,
        holders: Iterable[Occupancy],
        shares: Shares,
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
            (o, o.leaving()) for o in tenants.leaving.values()
        ]
        #: By queue: what it and those below it had before anybody was told to go.
        self._had: dict[str, Floats] | None = None
        #: By queue: the lowest priority of those that can be evicted, or are leaving.
        self._lowest: dict[str, int] | None = None
        self._worth: dict[tuple[str, int], bool] = {}

    def could_help(self, claims: Sequence[Claim]) -> bool:
        """Whether there is a lower priority to evict, or the claimant would stay in its share."""
        shares = self._shares
        if any(self._has_lower(claim.queue, claim.priority) for claim in claims):
            return True
        return all(
            shares.within_share(shares.branches[claim.queue], need_of(claim, shares.table))
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
                tenant = occupancy.tenant
                if tenant.evictable or tenant.job in self._tenants.leaving:
                    known = self._lowest.get(tenant.queue, occupancy.lowest)
                    self._lowest[tenant.queue] = min(known, occupancy.lowest)
        return self._lowest

    def _might_have_rights(self, queue: str, priority: int) -> bool:
        if self._has_lower(queue, priority):
            return True
        others = any(other != queue for other in self._lowest_by_queue())
        return others and not self._shares.is_sated(self._shares.branches[queue])

    def _has_lower(self, queue: str, priority: int) -> bool:
        own = self._shares.branches[queue].queue
        equal = own.preempt_within_queue is PreemptWithin.LOWER_OR_NEWER_EQUAL
        return self._lowest_by_queue().get(queue, priority + 1) < priority + equal

    def find(self, claims: Sequence[Claim], ground: Ground) -> Found | None:
        """Victims for a claimant, with the places it would have. All views are left as they were,
        but for those places."""
        rights = Rights(self._shares, claims, ground.views[0])
        queues = set(filter(rights.reach, self._lowest_by_queue()))
        theirs = [
            occupancy
            for occupancy in self._here(queues)
            if occupancy.tenant.evictable and self._is_over(rights, occupancy, occupancy.lowest)
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
            and not occupancy.tenant.holds
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

    def _had_rights(self, rights: Rights) -> bool:
        """Whether the claimant could have evicted somebody who is leaving already."""
        if self._had is None:
            self._had = self._shares.sums(self._tenants.used, self._tenants.returning)
        for occupancy, positions in self._going:
            tenant, priorities = occupancy.tenant, occupancy.priorities
            least = min(priorities[position] for position in positions)
            if rights.were_over(tenant, least, self._had, young=self._is_young(tenant)):
                return True
        return False

    def _rank(self, unit: Unit) -> tuple[object, ...]:
        """The cheapest first; of equals those of the least important queue, the smallest, and the
        newest."""
        tenant, shares = unit.occupancy.tenant, self._shares
        path = shares.branches[tenant.queue].path()
        queues = tuple(branch.queue.priority for branch in path)[::-1]
        size = shares.part_of_all(unit.amounts)
        return (unit.whole, unit.priority, unit.cost, queues, size, -tenant.created_at)

    def _here(self, queues: Set[str]) -> Iterator[Occupancy]:
        """Those of these queues that have places which they were not told to leave in this pass."""
        if not queues:
            return
        for occupancy in chain(self._holders, self._tenants.by_job.values()):
            tenant = occupancy.tenant
            if tenant.queue in queues and tenant.job not in self.spoken_for:
                yield occupancy
        yield from (left for left in self._left.values() if left.tenant.queue in queues)

    def give_way(self, found: Found) -> None:
        """What was found goes; what is left of a gang that gave tasks may have to give more."""
        for job, units in found.by_gang().items():
            self.spoken_for.add(job)
            self._left.pop(job, None)
            self._going += ((unit.occupancy, unit.positions) for unit in units)
            if not any(unit.whole or unit.occupancy.tenant.holds for unit in units):
                tenant = units[0].occupancy.tenant
                gone = {position for unit in units for position in unit.positions}
                rest = tuple(place for n, place in enumerate(tenant.places) if n not in gone)
                self._left[job] = Occupancy(replace(tenant, places=rest), self._shares.table)

    def _is_over(self, rights: Rights, occupancy: Occupancy, priority: int) -> bool:
        return rights.over(occupancy, priority, young=self._is_young(occupancy.tenant))

    def _cheapest(
        self, claims: Sequence[Claim], rights: Rights, units: list[Unit], ground: Ground
    ) -> Found | None:
        """A gang that has to be in one domain is tried in each of them."""
        best: tuple[tuple[bool, int, float, int], _Attempt] | None = None
        for pool, variant in product(pools(rights, units), variants(claims, ground.views[0])):
            attempt = _Attempt(variant, rights, pool, ground)
            found = attempt.run()
            if found is None:
                continue
            found.undo()
            if best is None or found.price < best[0]:
                best = (found.price, attempt)
        return None if best is None else best[1].again()

    def _is_young(self, tenant: Tenant) -> bool:
        return self._now - tenant.started_at < self._min_runtime

    def _surplus(self, occupancy: Occupancy) -> Iterator[Unit]:
        """Tasks that the gang could go on without, one by one, its last ones first."""
        tenant = occupancy.tenant
        if tenant.holds:
            yield Unit(occupancy, tuple(range(len(tenant.places))), whole=False, cost=0.0)
            return
        if len(tenant.places) <= tenant.min_available:
            return
        minimum = dict(tenant.role_min)
        spare: dict[str, int] = {}
        for place in tenant.places:
            spare[place.role] = spare.get(place.role, -minimum.get(place.role, 0)) + 1
        # All that are offered on one node can go together.
        offered: dict[tuple[str, str], int] = {}
        for position in range(len(tenant.places) - 1, -1, -1):
            place = tenant.places[position]
            there = offered.get((place.role, place.node), 0)
            most = min(spare[place.role], len(tenant.places) - tenant.min_available)
            if place.preemptible and not place.leaving and there < most:
                offered[place.role, place.node] = there + 1
                cost = occupancy.cost(self._now, (position,))
                yield Unit(occupancy, (position,), whole=False, cost=cost)

    def _whole(self, occupancy: Occupancy) -> Unit:
        positions = tuple(range(len(occupancy.nodes)))
        return Unit(occupancy, positions, whole=True, cost=occupancy.cost(self._now))


class _Attempt:
    """A search among units that are given, cheapest first."""

    def __init__(
        self, claims: Sequence[Claim], rights: Rights, units: list[Unit], ground: Ground
    ) -> None:
        self._claims = claims
        self._rights = rights
        self._units = units
        self._view = ground.views[0]
        self._views, self._only = ground
        self._chosen: dict[int, Unit] = {}
        #: Surplus that was chosen, by gang and role, and the gangs; whole gangs that were chosen.
        self._given: dict[tuple[str, str], int] = {}
        self._givers: set[str] = set()
        self._whole: set[str] = set()
        #: By queue: amounts that are more than it has to give.
        self._refused: set[tuple[str, bytes]] = set()

    def run(self) -> Found | None:
        """The cheapest set that was found. The views are left as they were, but for its places."""
        if not self._gather() and not self._begin_with_refused():
            return None
        self._prune()
        self._try_single_ones()
        return self._found()

    def again(self) -> Found | None:
        """What `run` found, once more."""
        for unit in self._chosen.values():
            self._vacate(unit)
        return self._found()

    def _found(self) -> Found | None:
        trials = self._trials()
        for unit in self._chosen.values():
            self._vacate(unit, -1)
        return None if trials is None else Found(trials, tuple(self._chosen.values()))

    def _gather(self) -> bool:
        """Choose victims part by part until the claimant fits."""
        trials = [Trial(claim, self._views, self._only) for claim in self._claims]
        for trial in trials:
            for part in sorted(trial.claim.parts, key=hardness, reverse=True):
                wanted = part.need or min(trial.claim.need, len(part.tasks))
                self._free_for(trial, part, wanted)
                trial.put(part, wanted)
        for trial in reversed(trials):
            trial.undo()
        if self._fits():
            return True
        # A domain or a limit asks for more: whoever is next.
        step = 1
        waiting = [n for n in range(len(self._units)) if n not in self._chosen]
        while waiting:
            for n in waiting[:step]:
                self._choose(n)
            waiting = waiting[step:]
            step *= 2
            if self._fits():
                return True
        return False

    def _begin_with_refused(self) -> bool:
        """What was chosen first may have left a queue too little to give: begin with the others."""
        refused = [n for n, unit in enumerate(self._units) if unit.kind in self._refused]
        for n in refused[:_SINGLES]:
            self._give_up()
            if self._choose(n) and self._gather():
                return True
        self._give_up()
        return False

    def _give_up(self) -> None:
        self._stay(*self._chosen)
        self._given, self._givers, self._whole, self._refused = {}, set(), set(), set()

    def _fits(self) -> bool:
        trials = self._trials()
        for trial in reversed(trials or ()):
            trial.undo()
        return trials is not None

    def _trials(self) -> tuple[Trial, ...] | None:
        """Places for every gang of the claimant, if it may and can start without the victims."""
        if not self._rights.suffice(self._chosen.values()):
            return None
        return together([Trial(claim, self._views, self._only) for claim in self._claims])

    def _prune(self) -> None:
        """Let everybody stay who is not needed, the dearest first."""
        for n in sorted(self._chosen, reverse=True):
            unit = self._chosen[n]
            self._stay(n)
            if not self._fits() and not (unit.whole and self._is_spared_by_surplus(unit)):
                self._take({n: unit})

    def _is_spared_by_surplus(self, whole: Unit) -> bool:
        """Whether a gang that may go whole need not, because its surplus is enough after all."""
        tenant = whole.occupancy.tenant
        own = {
            n: unit
            for n, unit in enumerate(self._units)
            if unit.occupancy is whole.occupancy and not unit.whole
        }
        self._take(own)
        for n, unit in reversed(own.items()) if self._fits() else ():
            self._stay(n)
            if not self._fits():
                self._take({n: unit})
        taken = [n for n in own if n in self._chosen]
        gone = {position for n in taken for position in own[n].positions}
        if self._fits() and is_enough(tenant, gone):
            return True
        self._stay(*taken)
        return False

    def _try_single_ones(self) -> None:
        """One gang that spans several nodes may be cheaper than one on each of them."""
        known = dict(self._chosen)
        if not any(unit.whole for unit in known.values()):
            return
        self._stay(*known)
        # A gang that only gives surplus is hardly touched: then the number of gangs does not count.
        keys = 4 if all(unit.whole for unit in known.values()) else 3
        best, cost = known, price(known.values())[:keys]
        cheaper = [n for n, unit in enumerate(self._units) if price((unit,))[:keys] < cost]
        for n in cheaper[:_SINGLES]:
            lawful = self._rights.may_add(self._units[n])
            self._chosen = {n: self._units[n]}
            self._vacate(self._units[n])
            if lawful and price((self._units[n],))[:keys] < cost and self._fits():
                best, cost = {n: self._units[n]}, price((self._units[n],))[:keys]
            self._vacate(self._units[n], -1)
        self._chosen = best
        for unit in best.values():
            self._vacate(unit)

    def _stay(self, *numbers: int) -> None:
        for n in numbers:
            self._vacate(self._chosen.pop(n), -1)

    def _take(self, units: Mapping[int, Unit]) -> None:
        for n, unit in units.items():
            self._vacate(unit)
            self._chosen[n] = unit

    def _vacate(self, unit: Unit, sign: int = 1) -> None:
        self._rights.free(unit, sign)
        for view in self._views:
            view.vacate(unit.occupants(), sign)

    def _choose(self, n: int) -> bool:
        unit = self._units[n]
        if n in self._chosen:
            return True
        tenant = unit.occupancy.tenant
        if tenant.job in self._whole or not self._may_give(unit):
            return False
        chosen = self._chosen.items() if tenant.job in self._givers else ()
        own = {k: other for k, other in chosen if other.occupancy is unit.occupancy}
        if unit.kind in self._refused or not self._rights.may_add(unit, own.values()):
            # A queue has less and less to give, so the same is refused from now on.
            self._refused.add(unit.kind)
            return False
        if unit.whole:
            # Whoever goes whole does not give anything else besides.
            self._whole.add(tenant.job)
            self._stay(*own)
        else:
            key = (tenant.job, tenant.places[unit.positions[0]].role)
            self._given[key] = self._given.get(key, 0) + 1
            self._givers.add(tenant.job)
        self._take({n: unit})
        return True

    def _may_give(self, unit: Unit) -> bool:
        """Whether a gang that gave other tasks already can spare this one too."""
        tenant = unit.occupancy.tenant
        if unit.whole or tenant.holds:
            return True
        role = tenant.places[unit.positions[0]].role
        given = sum(n for (job, _), n in self._given.items() if job == tenant.job)
        if len(tenant.places) - given <= tenant.min_available:
            return False
        left = sum(place.role == role for place in tenant.places)
        left -= self._given.get((tenant.job, role), 0)
        return left > dict(tenant.role_min).get(role, 0)

    def _free_for(self, trial: Trial, part: Part, wanted: int) -> None:
        """Choose the cheapest units that let so many tasks of the part fit, node by node."""
        counts = trial.counts(part)
        missing = wanted - int(counts.sum())
        if missing <= 0:
            return
        sought = Sought(part, counts, self._allowed(trial.claim, part), missing)
        for gain, prefix in openings(self._units, self._chosen, self._view, sought):
            if all(self._choose(n) for n in prefix):
                missing -= gain
            if missing <= 0:
                return

    def _allowed(self, claim: Claim, part: Part) -> Bools:
        mask = self._view.table.mask(part.ask)
        if self._only is not None:
            mask = mask & self._only
        pack = claim.pack
        if pack is not None and pack.mode is PackMode.REQUIRE and claim.domain is not None:
            codes, values = self._view.table.domains(pack.by)
            mask = mask & (codes == values.index(claim.domain))
        return mask
