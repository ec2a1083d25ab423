"""Who gives way: the cheapest set of gangs without which a claimant could start.

Free room and victims are searched together. First surplus of elastic gangs, then whole gangs; of
those the lowest priority, then the least work lost, then the fewest. Whoever turns out not to be
needed stays. If nothing makes the claimant fit, nobody is evicted.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.core.model import PreemptWithin
from phalanx.core.spec import Micros
from phalanx.plan.decisions import Victim
from phalanx.plan.model import Claim, Part, Tenant
from phalanx.plan.nodes import Bools, Floats, Ints
from phalanx.plan.place import Trial
from phalanx.plan.rights import Rights
from phalanx.plan.share import Shares
from phalanx.plan.tenants import Occupancy, Tenants
from phalanx.plan.view import Occupant, View


class Unit(NamedTuple):
    """What can be taken at once: a task beyond its gang's minimum, or a whole gang."""

    occupancy: Occupancy
    positions: tuple[int, ...]
    whole: bool
    cost: float

    @property
    def amounts(self) -> Floats:
        """What it frees in all, by row."""
        return np.asarray(self.freed.sum(axis=0), float)

    @property
    def nodes(self) -> Ints:
        nodes = self.occupancy.nodes
        return nodes if self.whole else nodes[list(self.positions)]

    @property
    def freed(self) -> Ints:
        """What each of its places frees, by row."""
        amounts = self.occupancy.amounts
        return amounts if self.whole else amounts[list(self.positions)]

    def occupants(self) -> list[Occupant]:
        return [self.occupancy.occupants[position] for position in self.positions]

    def task_ids(self) -> list[str]:
        tenant = self.occupancy.tenant
        return [f"{tenant.job}.{tenant.places[position].task}" for position in self.positions]

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        tenant = self.occupancy.tenant
        return (self.whole, tenant.priority, self.cost, -tenant.created_at)


class Found(NamedTuple):
    trials: tuple[Trial, ...]
    units: tuple[Unit, ...]

    def victims(self) -> tuple[Victim, ...]:
        """Gang by gang, what it gives."""
        by_job: dict[str, list[Unit]] = {}
        for unit in self.units:
            by_job.setdefault(unit.occupancy.tenant.job, []).append(unit)
        victims = []
        for job, units in by_job.items():
            tenant = units[0].occupancy.tenant
            positions = [position for unit in units for position in unit.positions]
            tasks = sorted(tenant.places[position].task for position in positions)
            whole = any(unit.whole for unit in units)
            lost = sum(unit.cost for unit in units)
            victims.append(Victim(job, tenant.version, () if whole else tuple(tasks), lost))
        return tuple(victims)


class Search:
    """One pass's searches. `soon` is what is free once everybody who is leaving has left."""

    def __init__(self, tenants: Tenants, shares: Shares, now: Micros, min_runtime: Micros) -> None:
        self._tenants = tenants
        self._shares = shares
        self._now = now
        self._min_runtime = min_runtime
        #: Gangs that give way already in this pass, whole or in part.
        self.spoken_for: set[str] = set()
        #: By queue: the lowest priority of those that can be evicted.
        self._lowest: dict[str, int] | None = None
        self._worth: dict[tuple[str, int], bool] = {}

    def is_worthwhile(self, queue: str, priority: int) -> bool:
        """Whether a gang of that queue and priority might have a right to anybody, at a glance."""
        if self._lowest is None:
            self._lowest = {}
            for occupancy in self._tenants.by_job.values():
                tenant = occupancy.tenant
                if tenant.evictable:
                    known = self._lowest.get(tenant.queue, tenant.priority)
                    self._lowest[tenant.queue] = min(known, tenant.priority)
        if not self._lowest:
            return False
        worth = self._worth.get((queue, priority))
        if worth is None:
            worth = self._worth[queue, priority] = self._might_have_rights(queue, priority)
        return worth

    def _might_have_rights(self, queue: str, priority: int) -> bool:
        lowest = self._lowest or {}
        own = self._shares.branches[queue]
        equal = own.queue.preempt_within_queue is PreemptWithin.LOWER_OR_NEWER_EQUAL
        if lowest.get(queue, priority + 1) < priority + equal:
            return True
        return any(other != queue for other in lowest) and not self._shares.is_sated(own)

    def find(self, claims: Sequence[Claim], soon: View, later: Sequence[View]) -> Found | None:
        """Victims for a claimant, with the places it would have. All views are left as they were,
        but for those places."""
        rights = Rights(self._shares, claims, soon)
        theirs = [
            occupancy
            for occupancy in self._tenants.by_job.values()
            if occupancy.tenant.evictable
            and occupancy.tenant.job not in self.spoken_for
            and rights.over(occupancy.tenant, young=self._is_young(occupancy.tenant))
        ]
        surplus = [unit for occupancy in theirs for unit in self._surplus(occupancy)]
        whole = [self._whole(occupancy) for occupancy in theirs if occupancy.is_preemptible]
        for units in (surplus, surplus + whole):
            if units:
                units.sort(key=lambda unit: unit.rank)
                found = _Attempt(claims, rights, units, soon, later).run()
                if found is not None:
                    return found
        return None

    def _is_young(self, tenant: Tenant) -> bool:
        return self._now - tenant.started_at < self._min_runtime

    def _surplus(self, occupancy: Occupancy) -> Iterator[Unit]:
        """Tasks that the gang could go on without, one by one, its last ones first."""
        tenant = occupancy.tenant
        if len(tenant.places) <= tenant.min_available:
            return
        minimum = dict(tenant.role_min)
        spare: dict[str, int] = {}
        for place in tenant.places:
            spare[place.role] = spare.get(place.role, -minimum.get(place.role, 0)) + 1
        for position in range(len(tenant.places) - 1, -1, -1):
            place = tenant.places[position]
            if place.preemptible and not place.leaving and spare[place.role] > 0:
                cost = occupancy.cost(self._now, (position,))
                yield Unit(occupancy, (position,), whole=False, cost=cost)

    def _whole(self, occupancy: Occupancy) -> Unit:
        positions = tuple(range(len(occupancy.nodes)))
        return Unit(occupancy, positions, whole=True, cost=occupancy.cost(self._now))


class _Attempt:
    """A search among units that are given, cheapest first."""

    def __init__(
        self,
        claims: Sequence[Claim],
        rights: Rights,
        units: list[Unit],
        soon: View,
        later: Sequence[View],
    ) -> None:
        self._claims = claims
        self._rights = rights
        self._units = units
        self._view = soon
        self._later = later
        self._chosen: dict[int, Unit] = {}
        #: Surplus that was chosen, by gang and role; whole gangs that were chosen.
        self._given: dict[tuple[str, str], int] = {}
        self._whole: set[str] = set()

    def run(self) -> Found | None:
        trials = self._gather()
        if trials is not None:
            for trial in trials:
                trial.undo()
            self._prune()
            trials = self._trials()
        self._give_all_back()
        if trials is None:
            return None
        return Found(trials, tuple(self._chosen.values()))

    def _gather(self) -> tuple[Trial, ...] | None:
        """Choose victims part by part until the claimant fits."""
        for claim in self._claims:
            for part in claim.parts:
                self._free_for(claim, part)
        trials = self._trials()
        if trials is not None:
            return trials
        # What the parts take from each other, or a limit, asks for more: whoever is next.
        step = 1
        waiting = [n for n in range(len(self._units)) if n not in self._chosen]
        while waiting:
            for n in waiting[:step]:
                self._choose(n)
            waiting = waiting[step:]
            step *= 2
            trials = self._trials()
            if trials is not None:
                return trials
        return None

    def _trials(self) -> tuple[Trial, ...] | None:
        """Places for every gang of the claimant, if it may and can start without the victims."""
        if not self._rights.suffice(self._chosen.values()):
            return None
        trials: list[Trial] = []
        for claim in self._claims:
            trial = Trial(claim, (self._view, *self._later))
            if not trial.minimum():
                for earlier in reversed(trials):
                    earlier.undo()
                return None
            trials.append(trial)
        return tuple(trials)

    def _prune(self) -> None:
        """Let everybody stay who is not needed, the dearest first."""
        for n in sorted(self._chosen, reverse=True):
            unit = self._chosen.pop(n)
            self._view.vacate(unit.occupants(), -1)
            trials = self._trials()
            if trials is None:
                self._view.vacate(unit.occupants())
                self._chosen[n] = unit
            else:
                for trial in reversed(trials):
                    trial.undo()

    def _give_all_back(self) -> None:
        for unit in self._chosen.values():
            self._view.vacate(unit.occupants(), -1)

    def _choose(self, n: int) -> bool:
        unit = self._units[n]
        if n in self._chosen:
            return True
        tenant = unit.occupancy.tenant
        if tenant.job in self._whole or not self._may_give(unit):
            return False
        if not self._rights.may_add(unit, self._chosen.values()):
            return False
        if unit.whole:
            self._whole.add(tenant.job)
            for other in [k for k, u in self._chosen.items() if u.occupancy is unit.occupancy]:
                self._view.vacate(self._chosen.pop(other).occupants(), -1)
        else:
            key = (tenant.job, tenant.places[unit.positions[0]].role)
            self._given[key] = self._given.get(key, 0) + 1
        self._view.vacate(unit.occupants())
        self._chosen[n] = unit
        return True

    def _may_give(self, unit: Unit) -> bool:
        """Whether a gang that gave other tasks already can spare this one too."""
        if unit.whole:
            return True
        tenant = unit.occupancy.tenant
        role = tenant.places[unit.positions[0]].role
        given = sum(n for (job, _), n in self._given.items() if job == tenant.job)
        if len(tenant.places) - given <= tenant.min_available:
            return False
        left = sum(place.role == role for place in tenant.places)
        left -= self._given.get((tenant.job, role), 0)
        return left > dict(tenant.role_min).get(role, 0)

    def _free_for(self, claim: Claim, part: Part) -> None:
        """Choose the cheapest units that let so many tasks of the part fit, node by node."""
        trial = Trial(claim, (self._view, *self._later))
        wanted = part.need or min(claim.need, len(part.tasks))
        counts = trial.counts(part)
        missing = wanted - int(counts.sum())
        if missing <= 0:
            return
        for gain, prefix in self._openings(part, counts, self._allowed(claim, part)):
            if all(self._choose(n) for n in prefix):
                missing -= gain
            if missing <= 0:
                return

    def _allowed(self, claim: Claim, part: Part) -> Bools:
        mask = self._view.table.mask(part.ask)
        if claim.pack is not None and claim.domain is not None:
            codes, values = self._view.table.domains(claim.pack.by)
            mask = mask & (codes == values.index(claim.domain))
        return mask

    def _openings(
        self, part: Part, counts: Ints, allowed: Bools
    ) -> Iterator[tuple[int, list[int]]]:
        """On each node the units in order of cost: after which of them do more tasks fit?

        Yields how many, and the units, the cheapest openings first.
        """
        units = [(n, unit) for n, unit in enumerate(self._units) if n not in self._chosen]
        if not units:
            return
        nodes = np.concatenate([unit.nodes for _, unit in units])
        owner = np.repeat([n for n, _ in units], [len(unit.positions) for _, unit in units])
        vector = self._view.table.vector(part.ask.resources)
        amounts = np.concatenate([unit.freed for _, unit in units])[:, vector.rows]
        inside = allowed[nodes]
        nodes, owner, amounts = nodes[inside], owner[inside], amounts[inside]
        order = np.argsort(nodes, kind="stable")
        nodes, owner, amounts = nodes[order], owner[order], amounts[order]
        if not len(nodes):
            return
        begins = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])
        room = _running_sums(amounts, begins) + self._view.free[vector.rows][:, nodes].T
        fits = np.maximum((room // vector.amounts).min(axis=1), 0)
        if part.ask.per_node is not None:
            fits = np.minimum(fits, part.ask.per_node)
        before = np.r_[0, fits[:-1]]
        before[begins] = counts[nodes[begins]]
        gains = fits - before
        costs = _running_sums(np.array([[u.cost] for u in self._units])[owner], begins)[:, 0]
        priorities = np.array([u.occupancy.tenant.priority for u in self._units])[owner]
        wholes = np.array([u.whole for u in self._units])[owner]
        best = np.lexsort((np.arange(len(nodes)), costs, priorities, wholes))
        start_of = np.repeat(begins, np.diff(np.r_[begins, len(nodes)]))
        for at in best[gains[best] > 0].tolist():
            yield int(gains[at]), list(dict.fromkeys(owner[start_of[at] : at + 1].tolist()))


def _running_sums(values: Ints | Floats, begins: Ints) -> Floats:
    """Sums down the columns that begin anew at each of the given lines."""
    sums = np.cumsum(values, axis=0)
    before = np.zeros((len(begins), values.shape[1]), sums.dtype)
    before[1:] = sums[begins[1:] - 1]
    lengths = np.diff(np.r_[begins, len(values)])
    return np.asarray(sums - np.repeat(before, lengths, axis=0), np.float64)
