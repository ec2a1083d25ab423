"""A trial placement of a gang: all of its minimum or nothing, then tasks above the minimum.

A trial takes free capacity as it places tasks and gives everything back when it is undone.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from phalanx.core.model import Assignment
from phalanx.core.spec.job import PackMode
from phalanx.plan.model import PendingGang, RoleRequest
from phalanx.plan.placement.amounts import hardness
from phalanx.plan.placement.domains import single_domains, spill_penalty
from phalanx.plan.placement.headroom import Headroom
from phalanx.plan.placement.node_choice import NodeChoice
from phalanx.plan.state.capacity import FreeCapacity, Occupant, TakenCapacity
from phalanx.plan.state.nodes import Bools, Floats, Ints, NodeTable


class PlacementTrial:
    """The nodes of a gang's tasks, and what they take of every capacity that was given."""

    def __init__(
        self,
        gang: PendingGang,
        capacities: Sequence[FreeCapacity],
        allowed: Bools | None = None,
        penalty: Floats | None = None,
    ) -> None:
        """`allowed` restricts the nodes; nodes with a higher penalty are filled later."""
        self.gang = gang
        self.table: NodeTable = capacities[0].table
        #: By role: the number of tasks placed, and their nodes.
        self.placed: dict[str, int] = {role.name: 0 for role in gang.roles}
        self._nodes: dict[str, list[Ints]] = {role.name: [] for role in gang.roles}
        #: Task → node of the places that the gang had gathered before.
        self.gathered: dict[int, str] = {place.task: place.worker for place in gang.gathered}
        self._choice = NodeChoice(gang, capacities, allowed, penalty)
        self._domain: int | None = None  #: the domain in which the minimum was tried last
        self._taken: list[tuple[FreeCapacity, TakenCapacity]] = []

    @property
    def capacities(self) -> Sequence[FreeCapacity]:
        return self._choice.capacities

    # The whole gang

    def place_minimum(self) -> bool:
        """Place the tasks that the gang needs to start; False, and nothing placed, if not all fit.

        A packed gang is tried in one domain after the other. Where the domain is only preferred,
        the gang is then placed in as few domains as possible.
        """
        gang, choice = self.gang, self._choice
        if gang.avoid:
            choice.avoid_nodes()
        if gang.pack is None:
            return self._place_roles()
        codes, names = self.table.domains(gang.pack.by)
        for domain in single_domains(gang, choice, codes, names):
            choice.domain_nodes, self._domain = codes == domain, domain
            if self._place_roles():
                return True
        choice.domain_nodes = None
        if gang.pack.mode is PackMode.REQUIRE:
            return False
        home = self._domain if gang.domain is not None else None
        self._spill(home, max(gang.roles, key=hardness), gang.need - len(self.gathered))
        return self._place_roles()

    def gather(self, headroom: Headroom) -> int:
        """Place as many tasks of the minimum as fit; the number of tasks placed."""
        rest = self.gang.need - len(self.gathered)
        for role in sorted(self.gang.roles, key=hardness, reverse=True):
            wanted = headroom.allows(role, min(rest, len(self._pending_tasks(role))))
            placed = self.place(role, wanted) if wanted > 0 else 0
            headroom.spend(role, placed)
            rest -= placed
        return self.count

    def grow(self, role: RoleRequest, wanted: int) -> int:
        """Place at most `wanted` tasks above the minimum; the number of tasks placed.

        They may leave a domain that the gang prefers, but not one that it requires.
        """
        placed = self.place(role, wanted)
        pack = self.gang.pack
        prefers = pack is not None and pack.mode is PackMode.PREFER
        if placed < wanted and prefers and self._choice.domain_nodes is not None:
            self._spill(self._domain, role, wanted - placed)
            placed += self.place(role, wanted - placed)
        return placed

    def spare(self, nodes: Bools) -> None:
        """Use these nodes last for tasks without conditions on their node."""
        self._choice.spared = nodes

    def spare_selected(self) -> bool:
        """Use the nodes that tasks with conditions select last for the others; False if no task has
        conditions."""
        selected = _selected_nodes((self,))
        if selected is None:
            return False
        self.spare(selected)
        return True

    def continue_on(self, capacities: Sequence[FreeCapacity], allowed: Bools | None) -> None:
        """Take further tasks from these capacities and nodes."""
        self._choice.capacities, self._choice.allowed = capacities, allowed

    def undo(self) -> None:
        """Give back everything that was taken."""
        while self._taken:
            capacity, taken = self._taken.pop()
            capacity.give_back(taken)
        self.placed = dict.fromkeys(self.placed, 0)
        self._nodes = {role: [] for role in self._nodes}
        self._choice.forget_tasks()

    def _place_roles(self) -> bool:
        """Place the minimum role by role.

        Heuristic: the role whose tasks are hardest to place goes first. If that fails, the role
        with the fewest places per task goes first: the hardest one may have taken the only nodes
        that another role can use.
        """
        hardest = sorted(self.gang.roles, key=hardness, reverse=True)
        if self._place_in_order(hardest):
            return True
        return len(hardest) > 1 and self._place_in_order(sorted(hardest, key=self._places_per_task))

    def _places_per_task(self, role: RoleRequest) -> float:
        """Free places that suit the role, divided by the tasks it needs."""
        return float(self.counts(role).sum()) / max(role.need, 1)

    def _place_in_order(self, roles: Sequence[RoleRequest]) -> bool:
        """Place the minimum of each role, then what the gang's total minimum asks for besides."""
        gang = self.gang
        if len(gang.roles) == 1 and not self.gathered:
            return self.place(gang.roles[0], gang.need, all_or_none=True) == gang.need
        pending = {role.name: len(self._pending_tasks(role)) for role in gang.roles}
        gathered = {role.name: len(role.tasks) - pending[role.name] for role in gang.roles}
        for role in roles:
            need = role.need - gathered[role.name]
            if need > 0 and self.place(role, need, all_or_none=True) < need:
                self.undo()
                return False
        rest = gang.need - sum(gathered.values()) - sum(self.placed.values())
        # Any role will do for the rest, so the tasks that are easiest to place go first.
        for role in reversed(roles):
            if rest <= 0:
                break
            rest -= self.place(role, min(rest, pending[role.name] - self.placed[role.name]))
        if rest > 0:
            self.undo()
            return False
        return True

    def _spill(self, home: int | None, role: RoleRequest, wanted: int) -> None:
        """Let the gang use more than one domain, but as few as possible."""
        if self.gang.pack is not None:
            choice = self._choice
            codes, names = self.table.domains(self.gang.pack.by)
            choice.domain_nodes = None
            penalty = spill_penalty(choice.counts(role), codes, len(names), wanted, home)
            choice.penalty = penalty if choice.penalty is None else penalty + choice.penalty

    # One role

    def place(self, role: RoleRequest, wanted: int, *, all_or_none: bool = False) -> int:
        """Place at most `wanted` tasks of the role; the number of tasks placed."""
        if wanted <= 0:
            return 0
        if role.request.traits is not None and wanted > 1:
            restriction = self._choice.restriction(role)
            if restriction is not None and restriction.one_by_one:
                return self._place_one_by_one(role, wanted, all_or_none=all_or_none)
        nodes, counts = self._choice.choose(role, wanted, all_or_none=all_or_none)
        if not len(nodes):
            return 0
        request = role.request
        vector = self.table.vector(request.resources)
        for capacity in self.capacities:
            self._taken.append((capacity, capacity.take(vector, nodes, counts, request.traits)))
        placed = int(counts.sum())
        self.placed[role.name] += placed
        self._nodes[role.name].append(np.repeat(nodes, counts))
        self._choice.add_tasks(role, nodes, counts)
        return placed

    def _place_one_by_one(self, role: RoleRequest, wanted: int, *, all_or_none: bool) -> int:
        """Place tasks each of which changes the nodes that the next one may use."""
        placed = 0
        while placed < wanted and self.place(role, 1):
            placed += 1
        if not all_or_none or placed == wanted:
            return placed
        for _ in range(placed):
            self._take_back(role)
        return 0

    def _take_back(self, role: RoleRequest) -> None:
        """Give back what the last call of `place` for this role took."""
        for _ in self.capacities:
            capacity, taken = self._taken.pop()
            capacity.give_back(taken)
        nodes = self._nodes[role.name].pop()
        self.placed[role.name] -= len(nodes)
        self._choice.add_tasks(role, nodes, np.full(len(nodes), -1))

    def counts(self, role: RoleRequest) -> Ints:
        """How many tasks of the role each node can take in all capacities."""
        return self._choice.counts(role)

    @property
    def has_unplaced(self) -> bool:
        """Whether tasks of any role have no place."""
        return any(self.unplaced(role) for role in self.gang.roles)

    def unplaced(self, role: RoleRequest) -> int:
        """Number of tasks of the role without a place."""
        pending = len(self._pending_tasks(role)) if self.gathered else len(role.tasks)
        return pending - self.placed[role.name]

    def _pending_tasks(self, role: RoleRequest) -> Sequence[int]:
        """The tasks of the role that had no place when the trial began."""
        if not self.gathered:
            return role.tasks
        return [task for task in role.tasks if task not in self.gathered]

    # The result

    @property
    def count(self) -> int:
        """Number of tasks placed."""
        return sum(self.placed.values())

    def assignments(self) -> tuple[Assignment, ...]:
        """The node of each placed or gathered task. The lowest tasks of a role are placed first."""
        return tuple(Assignment(task, node) for task, node in sorted(self._assigned()))

    def _assigned(self) -> Iterator[tuple[int, str]]:
        """Each placed or gathered task with its node, role by role."""
        for role in self.gang.roles:
            yield from ((task, self.gathered[task]) for task in role.tasks if task in self.gathered)
            if self._nodes[role.name]:
                nodes = np.concatenate(self._nodes[role.name]).tolist()
                tasks = self._pending_tasks(role)[: len(nodes)]
                yield from zip(tasks, map(self.table.name, nodes), strict=True)

    def occupants(self) -> list[Occupant]:
        """Every placed task, by the position of its node."""
        occupants: list[Occupant] = []
        for role in self.gang.roles:
            vector = self.table.vector(role.request.resources)
            for nodes in self._nodes[role.name]:
                occupants += ((node, vector, (), role.request.traits) for node in nodes.tolist())
        return occupants

    def amounts(self) -> Floats:
        """Amounts that all placed tasks take, by row."""
        amounts = np.zeros(len(self.table.rows))
        for role in self.gang.roles:
            vector = self.table.vector(role.request.resources)
            amounts[vector.rows] += vector.amounts * self.placed[role.name]
        return amounts


def place_all(trials: Sequence[PlacementTrial]) -> tuple[PlacementTrial, ...] | None:
    """Place the minimums of several gangs; None, and nothing placed, if not all fit.

    The trials are returned in the order in which they were placed. Heuristic: the given order is
    tried, then the opposite one, because the first gang may have taken the only nodes of the last.
    If both fail, both are tried again with tasks that can go anywhere kept from the nodes that
    other tasks select.
    """
    if len(trials) == 1:
        return tuple(trials) if trials[0].place_minimum() else None
    orders = (tuple(trials), tuple(reversed(trials)))
    placed = next(filter(_place_in_turn, orders), None)
    selected = _selected_nodes(trials) if placed is None else None
    if selected is not None:
        for trial in trials:
            trial.spare(selected)
        placed = next(filter(_place_in_turn, orders), None)
    return placed


def _place_in_turn(trials: Sequence[PlacementTrial]) -> bool:
    """Place one minimum after the other; False, and nothing placed, if not all fit."""
    for n, trial in enumerate(trials):
        if not trial.place_minimum():
            undo_all(trials[:n])
            return False
    return True


def _selected_nodes(trials: Sequence[PlacementTrial]) -> Bools | None:
    """Mask of the nodes that any task with conditions may use; None if no task has any."""
    requests = {role.request for trial in trials for role in trial.gang.roles}
    masks = [trials[0].table.mask(request) for request in requests if request.conditions]
    return np.logical_or.reduce(masks) if masks else None


def undo_all(trials: Sequence[PlacementTrial] | None) -> None:
    """Give back everything that the trials took, the last trial first."""
    for trial in reversed(trials or ()):
        trial.undo()
