"""Finding places for a claimant: all of its minimum or nothing, then what else there is room for.

Best fit fills the node that leaves least behind, so that whole nodes stay free; `spread` does the
opposite. Views that are looked at together all have to have room, each at its own time.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from phalanx.core.model import Assignment
from phalanx.core.node import GPU
from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.state.capacity import FreeCapacity, Occupant, TakenCapacity, fill
from phalanx.plan.state.nodes import SLOTS, Bools, Floats, Ints, NodeTable

_NOWHERE: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
#: More than any node could leave behind.
_LAST = 1e6
#: A required domain is looked for among this many of the tightest.
_DOMAINS = 64


class PlacementTrial:
    """A gang's places while they are being found, and what they take of every view."""

    def __init__(
        self,
        claim: PendingGang,
        views: Sequence[FreeCapacity],
        only: Bools | None = None,
        penalty: Floats | None = None,
    ) -> None:
        """On these nodes only, if they are given; those with a penalty come later."""
        self.claim = claim
        self.views = views
        self.table: NodeTable = views[0].table
        #: By part: how many of its tasks are placed, and where.
        self.placed: dict[str, int] = {part.role: 0 for part in claim.parts}
        self.where: dict[str, list[Ints]] = {part.role: [] for part in claim.parts}
        self.held: dict[int, str] = {hold.task: hold.worker for hold in claim.held}
        self._taken: list[tuple[FreeCapacity, TakenCapacity]] = []
        self.only = only
        self._allowed: Bools | None = None
        self._home: int | None = None  #: the domain in which it was tried last
        self._penalty = penalty
        self._there: dict[str, dict[int, int]] = {}
        for role, node, count in claim.there:
            if node in self.table.index:
                self._there.setdefault(role, {})[self.table.index[node]] = count

    # The whole claim

    def minimum(self) -> bool:
        """Place what the gang needs to start. Leaves nothing behind if that cannot be done."""
        pack = self.claim.pack
        if self.claim.avoid:
            self._penalty = self._avoiding()
        if pack is None:
            return self._minimum()
        codes, values = self.table.domains(pack.by)
        for domain in self._single(codes, values):
            self._allowed, self._home = codes == domain, domain
            if self._minimum():
                return True
        self._allowed = None
        if pack.mode is PackMode.REQUIRE:
            return False
        home = self._home if self.claim.domain is not None else None
        self._spill(home, max(self.claim.parts, key=hardness), self.claim.need - len(self.held))
        return self._minimum()

    def _minimum(self) -> bool:
        hardest = sorted(self.claim.parts, key=hardness, reverse=True)
        if self._in_order(hardest):
            return True
        # Who is hardest to place may have taken what others cannot do without.
        return len(hardest) > 1 and self._in_order(sorted(hardest, key=self._choice))

    def _choice(self, part: RoleRequest) -> float:
        """How many places there are for each task of the part."""
        return float(self.counts(part).sum()) / max(part.need, 1)

    def _in_order(self, parts: Sequence[RoleRequest]) -> bool:
        claim = self.claim
        if len(claim.parts) == 1 and not self.held:
            return self.put(claim.parts[0], claim.need, whole=True) == claim.need
        waiting = {part.role: self._waiting(part) for part in claim.parts}
        has = {part.role: len(part.tasks) - len(waiting[part.role]) for part in claim.parts}
        for part in parts:
            need = part.need - has[part.role]
            if need > 0 and self.put(part, need, whole=True) < need:
                self.undo()
                return False
        rest = claim.need - sum(has.values()) - sum(self.placed.values())
        # Any task will do for what only the sum demands, so those that fit most easily go first.
        for part in reversed(parts):
            if rest <= 0:
                break
            room = len(waiting[part.role]) - self.placed[part.role]
            rest -= self.put(part, min(rest, room))
        if rest > 0:
            self.undo()
            return False
        return True

    def gather(self, budget: "Budget") -> int:
        """Place as much of the minimum as fits; how many tasks that is."""
        rest = self.claim.need - len(self.held)
        for part in sorted(self.claim.parts, key=hardness, reverse=True):
            wanted = min(rest, len(self._waiting(part)))
            rest -= self._put_within(part, wanted, budget)
        return self.count

    def put_more(self, part: RoleRequest, wanted: int) -> int:
        """Place tasks beyond the minimum, at most so many. A domain may be left for them that the
        gang only prefers."""
        placed = self.put(part, wanted)
        pack = self.claim.pack
        prefers = pack is not None and pack.mode is PackMode.PREFER
        if placed < wanted and prefers and self._allowed is not None:
            self._spill(self._home, part, wanted - placed)
            placed += self.put(part, wanted - placed)
        return placed

    def lacks(self, part: RoleRequest) -> int:
        """How many tasks of the part have no place."""
        return len(self._waiting(part)) - self.placed[part.role]

    def _put_within(self, part: RoleRequest, wanted: int, budget: "Budget") -> int:
        wanted = budget.allows(part, wanted)
        placed = self.put(part, wanted) if wanted > 0 else 0
        budget.spend(part, placed)
        return placed

    def _waiting(self, part: RoleRequest) -> list[int]:
        return (
            [task for task in part.tasks if task not in self.held] if self.held else [*part.tasks]
        )

    @property
    def count(self) -> int:
        return sum(self.placed.values())

    def assignments(self) -> tuple[Assignment, ...]:
        """Where each placed or held task goes: the lowest tasks of a role first."""
        return tuple(Assignment(task, node) for task, node in sorted(self._assigned()))

    def _assigned(self) -> Iterator[tuple[int, str]]:
        for part in self.claim.parts:
            yield from ((task, self.held[task]) for task in part.tasks if task in self.held)
            if self.where[part.role]:
                nodes = np.concatenate(self.where[part.role]).tolist()
                tasks = self._waiting(part)[: len(nodes)]
                yield from zip(tasks, map(self.table.name, nodes), strict=True)

    def occupants(self) -> list[Occupant]:
        """Every placed task by the position of its node."""
        found: list[Occupant] = []
        for part in self.claim.parts:
            vector = self.table.vector(part.ask.resources)
            for nodes in self.where[part.role]:
                found += ((node, vector, ()) for node in nodes.tolist())
        return found

    def amounts(self) -> Floats:
        """What all placed tasks take, by row."""
        total = np.zeros(len(self.table.rows))
        for part in self.claim.parts:
            vector = self.table.vector(part.ask.resources)
            total[vector.rows] += vector.amounts * self.placed[part.role]
        return total

    def undo(self) -> None:
        while self._taken:
            view, taken = self._taken.pop()
            view.give_back(taken)
        self.placed = dict.fromkeys(self.placed, 0)
        self.where = {role: [] for role in self.where}

    # One part

    def put(self, part: RoleRequest, wanted: int, *, whole: bool = False) -> int:
        """Place tasks of a part, at most so many, or with `whole` so many or none."""
        nodes, chosen = self._choose(part, wanted, whole=whole) if wanted > 0 else _NOWHERE
        if not len(nodes):
            return 0
        vector = self.table.vector(part.ask.resources)
        for view in self.views:
            self._taken.append((view, view.take(vector, nodes, chosen)))
        placed = int(chosen.sum())
        self.placed[part.role] += placed
        self.where[part.role].append(np.repeat(nodes, chosen))
        if part.ask.per_node is not None:
            there = self._there.setdefault(part.role, {})
            for node, count in zip(nodes.tolist(), chosen.tolist(), strict=True):
                there[node] = there.get(node, 0) + count
        return placed

    def _choose(self, part: RoleRequest, wanted: int, *, whole: bool) -> tuple[Ints, Ints]:
        """Nodes for so many tasks, and how many go to each; none if `whole` and not all fit."""
        if self._is_free_to_choose(part):
            fit = self.views[0].fit(part.ask)
            if not fit.total or (whole and fit.total < wanted):
                return _NOWHERE
            return self.views[0].fullest(part.ask, wanted)
        candidates, counts = self._candidates(part)
        total = int(counts.sum())
        if total == 0 or (whole and total < wanted):
            return _NOWHERE
        left = self.views[0].behind(part.ask, candidates, spread=self.claim.spread)
        if self._penalty is not None:
            last = self._penalty[candidates]
            left = left - last if self.claim.spread else left + last
        if self.claim.spread:
            step = self._step(part.ask)[candidates]
            return _spread(candidates, counts, left, step, wanted)
        return fill(candidates, counts, left, wanted)

    def _candidates(self, part: RoleRequest) -> tuple[Ints, Ints]:
        """The nodes that can take tasks of the part, and how many each."""
        view = self.views[0]
        alone = len(self.views) == 1 and self._allowed is None and part.ask.per_node is None
        nodes = np.flatnonzero(self.only) if alone and self.only is not None else None
        if nodes is not None and view.is_few(nodes):
            counts = view.count_at(part.ask, nodes)
            return nodes[counts > 0], counts[counts > 0]
        counts = self.counts(part)
        nodes = np.flatnonzero(counts)
        return nodes, counts[nodes]

    def _is_free_to_choose(self, part: RoleRequest) -> bool:
        """Whether any node that has room now will do, the fullest first."""
        bounds = (self._penalty, self.only, self._allowed)
        return (
            len(self.views) == 1
            and part.ask.per_node is None
            and not self.claim.spread
            and all(bound is None for bound in bounds)
        )

    def counts(self, part: RoleRequest) -> Ints:
        """How many tasks of the part each node can take at all times that are looked at."""
        counts = self.views[0].fit(part.ask).counts
        for view in self.views[1:]:
            counts = np.minimum(counts, view.fit(part.ask).counts)
        limit = part.ask.per_node
        if limit is not None:
            counts = np.minimum(counts, limit)
            for node, there in self._there.get(part.role, {}).items():
                counts[node] = min(counts[node], max(0, limit - there))
        for allowed in (self.only, self._allowed):
            if allowed is not None:
                counts = np.where(allowed, counts, 0)
        return counts

    def _step(self, ask: TaskRequest) -> Floats:
        """How much emptier a node seems without one task."""
        step = np.zeros(self.views[0].free.shape[1])
        for resource, amount in ask.resources or ((SLOTS, 1),):
            step += amount / np.maximum(self.table.capacity[self.table.rows[resource]], 1)
        return step

    # Domains and nodes to avoid

    def _single(self, codes: Ints, values: list[str]) -> list[int]:
        """The domains that could do alone: where the gang is already, else the tightest first."""
        if self.claim.domain is None:
            return self._tightest(codes, len(values))
        return [values.index(self.claim.domain)] if self.claim.domain in values else []

    def _spill(self, home: int | None, part: RoleRequest, wanted: int) -> None:
        """Let the gang be in more than one domain, but in as few as will do."""
        if self.claim.pack is not None:
            codes, values = self.table.domains(self.claim.pack.by)
            self._allowed = None
            inside = codes >= 0
            counts = self.counts(part)
            room = np.bincount(codes[inside], counts[inside], len(values)).astype(float)
            rank = np.full(len(values) + 1, len(values), float)  # nodes in no domain come last
            rank[_fewest(room, wanted, home)] = np.arange(len(values))
            penalty: Floats = rank[codes] * _LAST
            self._penalty = penalty if self._penalty is None else penalty + self._penalty

    def _tightest(self, codes: Ints, domains: int) -> list[int]:
        """The domains that may hold the whole minimum, those with least to spare first."""
        inside = codes >= 0
        part = max(self.claim.parts, key=lambda part: (part.need, hardness(part)))
        need = part.need or min(self.claim.need, len(part.tasks))
        if len(self.claim.parts) > 1:
            need = max(part.need, 0)
        counts = self.counts(part)
        room = np.bincount(codes[inside], weights=counts[inside], minlength=domains)
        fitting = [n for n in np.argsort(room, kind="stable").tolist() if room[n] >= max(need, 1)]
        return fitting[:_DOMAINS]

    def _avoiding(self) -> Floats:
        penalty = np.zeros(self.views[0].free.shape[1])
        if self._penalty is not None:
            penalty += self._penalty
        for name in self.claim.avoid:
            at = self.table.index.get(name)
            if at is not None:
                penalty[at] += _LAST * _LAST
        return penalty


def together(trials: Sequence[PlacementTrial]) -> tuple[PlacementTrial, ...] | None:
    """Place the minimums of several gangs, in this order or the opposite one.

    The trials in the order in which they were placed; None, and nothing placed, if not all fit.
    """
    for order in (tuple(trials), tuple(reversed(trials)))[: len(trials)]:
        for n, trial in enumerate(order):
            if not trial.minimum():
                undo(order[:n])
                break
        else:
            return order
    return None


def undo(trials: Sequence[PlacementTrial] | None) -> None:
    """Give back what several gangs took, if they did."""
    for trial in reversed(trials or ()):
        trial.undo()


class Budget:
    """What the limits of a queue leave for tasks beyond the minimum."""

    def __init__(self, room: Floats, table: NodeTable) -> None:
        self._room = room.copy()
        self._table = table

    def allows(self, part: RoleRequest, wanted: int) -> int:
        vector = self._table.vector(part.ask.resources)
        most = np.floor((self._room[vector.rows] + 1e-6) / vector.amounts).min()
        return int(max(0, min(wanted, most)))

    def spend(self, part: RoleRequest, count: int) -> None:
        vector = self._table.vector(part.ask.resources)
        self._room[vector.rows] -= vector.amounts * count


def _fewest(room: Floats, wanted: int, home: int | None) -> Ints:
    """The order to fill domains in: its own, the roomiest, then what the rest fills best."""
    first = room.copy()
    if home is not None:
        first[home] = np.inf
    order = np.argsort(-first, kind="stable")
    filled = int(np.searchsorted(np.cumsum(room[order]), wanted))
    rest, last = wanted - room[order[:filled]].sum(), order[filled:]
    order[filled:] = last[
        np.argsort(np.where(room[last] < rest, np.inf, room[last]), kind="stable")
    ]
    return order


def _spread(
    nodes: Ints, counts: Ints, left: Floats, step: Floats, wanted: int
) -> tuple[Ints, Ints]:
    """Always the node that is emptiest by now."""
    heap = [(-space, n) for n, space in enumerate(left.tolist())]
    heapq.heapify(heap)
    chosen = np.zeros(len(nodes), np.int64)
    for _ in range(wanted):
        if not heap:
            break
        space, n = heapq.heappop(heap)
        chosen[n] += 1
        if chosen[n] < counts[n]:
            heapq.heappush(heap, (space + float(step[n]), n))
    used = chosen > 0
    return nodes[used], chosen[used]


def hardness(part: RoleRequest) -> tuple[int, int, int]:
    """What is hardest to place goes first."""
    resources = dict(part.ask.resources)
    return (resources.get(GPU, 0), len(part.ask.selector), sum(resources.values()))


def need_of(claim: PendingGang, table: NodeTable) -> Floats:
    """What the gang takes to start, besides what it holds; by row.

    What only the sum demands is reckoned with its lightest tasks.
    """
    need = np.zeros(len(table.rows))
    has = {part.role: held_of(claim, part) for part in claim.parts}
    rest = claim.need - sum(max(part.need, has[part.role]) for part in claim.parts)
    for part in sorted(claim.parts, key=hardness):
        vector = table.vector(part.ask.resources)
        floor = max(part.need, has[part.role])
        more = max(0, min(rest, len(part.tasks) - floor))
        rest -= more
        need[vector.rows] += vector.amounts * (floor + more - has[part.role])
    return need


def held_of(claim: PendingGang, part: RoleRequest) -> int:
    """How many tasks of the part have a place that the gang holds."""
    return sum(hold.task in part.tasks for hold in claim.held) if claim.held else 0


def holds(claim: PendingGang, table: NodeTable) -> Floats:
    """What the gang holds, by row."""
    held = np.zeros(len(table.rows))
    for part in claim.parts:
        vector = table.vector(part.ask.resources)
        held[vector.rows] += vector.amounts * held_of(claim, part)
    return held


def all_of(claim: PendingGang, table: NodeTable) -> Floats:
    """What all of the gang's waiting tasks would take."""
    every = np.zeros(len(table.rows))
    for part in claim.parts:
        vector = table.vector(part.ask.resources)
        every[vector.rows] += vector.amounts * len(part.tasks)
    return every
