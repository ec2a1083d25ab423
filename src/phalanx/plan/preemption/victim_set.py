"""One attempt at making room: who of those that may go has to, so that the claimant fits.

Victims are gathered until it does, the cheapest first; then whoever is not needed stays.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang, RoleRequest
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.preemption.candidates import EvictionUnit, VictimSet, is_enough, price
from phalanx.plan.preemption.eligibility import EvictionEligibility
from phalanx.plan.preemption.node_gains import Sought, openings
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Bools

#: At most this many single gangs are tried in a search.
_SINGLES = 16


class Ground(NamedTuple):
    """Where a claimant could go: what is free soon, and futures that must have room as well."""

    views: Sequence[FreeCapacity]
    only: Bools | None = None  #: on these nodes


class VictimSetSearch:
    """A search among units that are given, cheapest first."""

    def __init__(
        self,
        claims: Sequence[PendingGang],
        rights: EvictionEligibility,
        units: list[EvictionUnit],
        ground: Ground,
    ) -> None:
        self._claims = claims
        self._rights = rights
        self._units = units
        self._view = ground.views[0]
        self._views, self._only = ground
        self._chosen: dict[int, EvictionUnit] = {}
        #: Surplus that was chosen, by gang and role, and the gangs; whole gangs that were chosen.
        self._given: dict[tuple[str, str], int] = {}
        self._givers: set[str] = set()
        self._whole: set[str] = set()
        #: By queue: amounts that are more than it has to give.
        self._refused: set[tuple[str, bytes]] = set()

    def run(self) -> VictimSet | None:
        """The cheapest set that was found. The views are left as they were, but for its places."""
        if not self._gather() and not self._begin_with_refused():
            return None
        self._prune()
        self._try_single_ones()
        if self._swap():
            self._prune()
        return self._found()

    def again(self) -> VictimSet | None:
        """What `run` found, once more."""
        for unit in self._chosen.values():
            self._vacate(unit)
        return self._found()

    def _found(self) -> VictimSet | None:
        trials = self._trials()
        for unit in self._chosen.values():
            self._vacate(unit, -1)
        return None if trials is None else VictimSet(trials, tuple(self._chosen.values()))

    def _gather(self) -> bool:
        """Choose victims part by part until the claimant fits."""
        trials = [PlacementTrial(claim, self._views, self._only) for claim in self._claims]
        for trial in trials:
            for part in sorted(trial.gang.roles, key=hardness, reverse=True):
                wanted = part.need or min(trial.gang.need, len(part.tasks))
                self._free_for(trial, part, wanted)
                trial.place(part, wanted)
        undo_all(trials)
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
        undo_all(trials)
        return trials is not None

    def _trials(self) -> tuple[PlacementTrial, ...] | None:
        """Places for every gang of the claimant, if it may and can start without the victims."""
        if not self._rights.suffice(self._chosen.values()):
            return None
        trials = place_all(
            [PlacementTrial(claim, self._views, self._only) for claim in self._claims]
        )
        if trials is not None and not self._rights.allow(trials):
            undo_all(trials)
            return None
        return trials

    def _prune(self) -> None:
        """Let everybody stay who is not needed, the dearest first."""
        for n in sorted(self._chosen, reverse=True):
            unit = self._chosen[n]
            self._stay(n)
            if not self._fits() and not (unit.whole and self._is_spared_by_surplus(unit)):
                self._take({n: unit})

    def _is_spared_by_surplus(self, whole: EvictionUnit) -> bool:
        """Whether a gang that may go whole need not, because its surplus is enough after all."""
        tenant = whole.occupancy.gang
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

    def _swap(self) -> bool:
        """Let a cheaper gang go instead of one of several, where that will do."""
        swapped, tries = False, _SINGLES
        for n in sorted(self._chosen, reverse=True) if len(self._chosen) > 1 else ():
            known, cost = self._chosen[n], price(self._chosen.values())
            self._stay(n)
            gangs = {unit.occupancy.gang.job for unit in self._chosen.values()}
            for m, unit in enumerate(self._units[:n]):
                if not unit.whole or unit.occupancy.gang.job in gangs or not tries:
                    continue
                if price((*self._chosen.values(), unit)) < cost:
                    tries -= 1
                    if self._rights.may_add(unit):
                        self._take({m: unit})
                        if self._fits():
                            swapped = True
                            break
                        self._stay(m)
            else:
                self._take({n: known})
        return swapped

    def _stay(self, *numbers: int) -> None:
        for n in numbers:
            self._vacate(self._chosen.pop(n), -1)

    def _take(self, units: Mapping[int, EvictionUnit]) -> None:
        for n, unit in units.items():
            self._vacate(unit)
            self._chosen[n] = unit

    def _vacate(self, unit: EvictionUnit, sign: int = 1) -> None:
        self._rights.free(unit, sign)
        for view in self._views:
            view.vacate(unit.occupants(), sign)

    def _choose(self, n: int) -> bool:
        unit = self._units[n]
        if n in self._chosen:
            return True
        tenant = unit.occupancy.gang
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
            key = (tenant.job, tenant.tasks[unit.positions[0]].role)
            self._given[key] = self._given.get(key, 0) + 1
            self._givers.add(tenant.job)
        self._take({n: unit})
        return True

    def _may_give(self, unit: EvictionUnit) -> bool:
        """Whether a gang that gave other tasks already can spare this one too."""
        tenant = unit.occupancy.gang
        if unit.whole or tenant.only_gathered:
            return True
        role = tenant.tasks[unit.positions[0]].role
        given = sum(n for (job, _), n in self._given.items() if job == tenant.job)
        if len(tenant.tasks) - given <= tenant.min_available:
            return False
        left = sum(place.role == role for place in tenant.tasks)
        left -= self._given.get((tenant.job, role), 0)
        return left > dict(tenant.role_min).get(role, 0)

    def _free_for(self, trial: PlacementTrial, part: RoleRequest, wanted: int) -> None:
        """Choose the cheapest units that let so many tasks of the part fit, node by node."""
        counts = trial.counts(part)
        missing = wanted - int(counts.sum())
        if missing <= 0:
            return
        sought = Sought(part, counts, self._allowed(trial.gang, part), missing)
        for gain, prefix in openings(self._units, self._chosen, self._view, sought):
            if all(self._choose(n) for n in prefix):
                missing -= gain
            if missing <= 0:
                return

    def _allowed(self, claim: PendingGang, part: RoleRequest) -> Bools:
        mask = self._view.table.mask(part.request)
        if self._only is not None:
            mask = mask & self._only
        pack = claim.pack
        if pack is not None and pack.mode is PackMode.REQUIRE and claim.domain is not None:
            codes, values = self._view.table.domains(pack.by)
            mask = mask & (codes == values.index(claim.domain))
        return mask
