"""Finding places: best fit over whatever resources are asked for, all of the minimum or nothing."""

from collections.abc import Mapping

from phalanx.core.gang import Gang
from phalanx.core.model import Assignment, Job, Task
from phalanx.core.node import GPU, Charge, Node
from phalanx.core.spec import Role

#: What decides where a task fits: resources, selector, limit on one node.
_Shape = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...], int | None]


class Room:
    """What is free, falling as the pass goes on."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        #: Never written to: a node is copied before it is charged.
        self.nodes = {name: node for name, node in sorted(nodes.items()) if node.is_open}
        #: The job that nodes are kept for, if any.
        self.kept_for: str | None = None
        self._full: set[_Shape] = set()
        #: By role; equal jobs share theirs.
        self._shapes: dict[int, _Shape] = {}

    def place(self, gang: Gang) -> list[Assignment]:
        """Places for the gang's minimum and for as many more of its tasks as fit; or nothing."""
        trial = _Trial(self.nodes, gang)
        chosen: list[Task] = []
        for role, tasks in _hardest_first(gang):
            shape = self._shape(role)
            if shape in self._full:
                continue
            for task in tasks:
                if not trial.put(task, role):
                    # Only a gang that has been nowhere yet proves that nobody else can fit.
                    if not chosen and role.per_node is None:
                        self._full.add(shape)
                    break
                chosen.append(task)
        if not chosen or not gang.may_start_with(chosen):
            return []
        self.nodes |= trial.touched
        return trial.assignments

    def keep_for(self, job: Job) -> None:
        """Give nobody else in this pass a node that the job could use if it were empty."""
        self.kept_for = job.id
        self.nodes = {
            name: node
            for name, node in self.nodes.items()
            if not any(could_hold(node, role) for role in job.spec.roles)
        }

    def _shape(self, role: Role) -> _Shape:
        shape = self._shapes.get(id(role))
        if shape is None:
            resources, selector = sorted(role.resources.items()), sorted(role.node_selector.items())
            shape = self._shapes[id(role)] = (tuple(resources), tuple(selector), role.per_node)
        return shape


class _Trial:
    """Charges that count only if the whole gang finds its places."""

    def __init__(self, nodes: Mapping[str, Node], gang: Gang) -> None:
        self._nodes = nodes
        self._job = gang.job
        self.touched: dict[str, Node] = {}
        self.assignments: list[Assignment] = []
        self._of_role: dict[tuple[str, str], int] = {}
        for task in gang.started():
            if task.worker is not None:
                self._count(task.role, task.worker)

    def _count(self, role: str, worker: str) -> None:
        key = (role, worker)
        self._of_role[key] = self._of_role.get(key, 0) + 1

    def put(self, task: Task, role: Role) -> bool:
        name = self._best(role)
        if name is None:
            return False
        node = self.touched.get(name)
        if node is None:
            node = self.touched[name] = self._nodes[name].copy()
        devices = node.pick_devices(role.resources.get(GPU, 0)) or ()
        node.charge((task.id, self._job.epoch + 1), Charge(0, role.resources, devices))
        self._count(role.name, name)
        self.assignments.append(Assignment(task.index, name))
        return True

    def _best(self, role: Role) -> str | None:
        """The node that leaves least behind; with `spread`, most. Avoided ones come last."""
        sign = -1 if self._job.spec.spread else 1
        best: tuple[bool, float, str] | None = None
        for name, base in self._nodes.items():
            node = self.touched.get(name, base)
            limit = role.per_node
            if limit is not None and self._of_role.get((role.name, name), 0) >= limit:
                continue
            if node.misfit(role) is None:
                score = (name in self._job.avoid, sign * left_behind(node, role), name)
                best = score if best is None else min(best, score)
        return None if best is None else best[2]


def matches(node: Node, role: Role) -> bool:
    labels = node.worker.labels
    return all(labels.get(label) == value for label, value in role.node_selector.items())


def could_hold(node: Node, role: Role) -> bool:
    """Whether a task of the role would fit if nothing else were there."""
    has = node.worker.resources
    return matches(node, role) and all(
        has.get(resource, 0) >= amount for resource, amount in role.resources.items()
    )


def left_behind(node: Node, role: Role) -> float:
    """The share of the node that stays free, over the resources that are asked for.

    A task that asks for nothing goes by the number of tasks.
    """
    if not role.resources:
        return -len(node.charges)
    shares = (
        (node.free(resource) - amount) / (node.worker.resources[resource] or 1)
        for resource, amount in role.resources.items()
    )
    return sum(shares)


def _hardest_first(gang: Gang) -> list[tuple[Role, list[Task]]]:
    """Roles with their waiting tasks; those that ask for most GPUs, then for most, go first."""
    waiting: dict[str, list[Task]] = {}
    for task in gang.waiting():
        waiting.setdefault(task.role, []).append(task)
    roles = [role for role in gang.job.spec.roles if role.name in waiting]
    roles.sort(key=_hardness, reverse=True)
    return [(role, waiting[role.name]) for role in roles]


def _hardness(role: Role) -> tuple[int, int, int]:
    return (role.resources.get(GPU, 0), len(role.node_selector), sum(role.resources.values()))
