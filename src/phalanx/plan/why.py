"""Why a gang found no place: the first thing that stands in its way."""

from collections.abc import Iterable, Mapping

from phalanx.core.node import Node
from phalanx.core.reasons import Fragmented, HeldBack, NeverFits, NoNodeMatches, NotEnough, Reason
from phalanx.core.spec import JobSpec, Role
from phalanx.plan.place import Room, matches


class Explainer:
    """Equal jobs wait for equal reasons, so each question is answered once."""

    def __init__(self, room: Room, nodes: Mapping[str, Node]) -> None:
        self._room = room
        self._nodes = nodes
        #: By the roles, which equal jobs share, and the minimum over them.
        self._known: dict[tuple[int, int], Reason] = {}

    def forget(self) -> None:
        """There is less room now than there was."""
        self._known.clear()

    def why(self, spec: JobSpec) -> Reason:
        question = (id(spec.roles), spec.min_available)
        known = self._known.get(question)
        if known is None:
            known = self._known[question] = self._answer(spec)
        return known

    def _answer(self, spec: JobSpec) -> Reason:
        minimum = _minimum(spec)
        for role, _ in minimum:
            impossible = _impossible(role, self._nodes)
            if impossible is not None:
                return impossible
        usable = [node for node in self._nodes.values() if node.worker.is_open]
        never = _never(minimum, usable)
        if never is not None:
            return never
        if self._room.kept_for is not None:
            return HeldBack(self._room.kept_for, None)
        return _short(spec, self._room)


def _impossible(role: Role, nodes: Mapping[str, Node]) -> Reason | None:
    """What not even the empty cluster could give to one task of the role."""
    matching = [node for node in nodes.values() if matches(node, role)]
    if role.node_selector and not matching:
        return NoNodeMatches(role.node_selector)
    for resource, amount in role.resources.items():
        largest = max((n.worker.resources.get(resource, 0) for n in matching), default=0)
        if amount > largest:
            return NeverFits(resource, amount, largest)
    return None


def _never(minimum: list[tuple[Role, int]], nodes: list[Node]) -> Reason | None:
    """What all nodes together could not give to the whole gang, were they empty."""
    for resource, needed in _needed(minimum).items():
        total = sum(node.worker.resources.get(resource, 0) for node in nodes)
        if needed > total:
            return NeverFits(resource, needed, total)
    for role, count in minimum:
        holds = sum(_holds(node, role) for node in nodes)
        if holds < count:
            resource, amount = next(iter(role.resources.items()), ("slots", 1))
            return NeverFits(resource, amount * count, amount * holds)
    return None


def _needed(minimum: list[tuple[Role, int]]) -> dict[str, int]:
    needed: dict[str, int] = {}
    for role, count in minimum:
        for resource, amount in role.resources.items():
            needed[resource] = needed.get(resource, 0) + amount * count
    return needed


def _holds(node: Node, role: Role) -> int:
    """How many tasks of the role the node could take if it were empty."""
    if not matches(node, role):
        return 0
    room = [node.worker.resources.get(r, 0) // amount for r, amount in role.resources.items()]
    room += [limit for limit in (node.worker.slots, role.per_node) if limit is not None]
    return min(room, default=role.replicas)


def _short(spec: JobSpec, room: Room) -> Reason:
    """How much of the minimum fits now, and what is missing for the rest."""
    nodes = room.nodes.values()
    minimum = _minimum(spec)
    needed = _needed(minimum)
    short = [r for r, amount in needed.items() if amount > _sum(node.free(r) for node in nodes)]
    fits = sum(min(count, sum(_fitting(n, role) for n in nodes)) for role, count in minimum)
    if short or not needed:
        return NotEnough(spec.min_available, fits, short[0] if short else "slots")
    hardest = max(minimum, key=lambda wanted: max(wanted[0].resources.values(), default=0))[0]
    return Fragmented("node", max((_fitting(node, hardest) for node in nodes), default=0))


def _minimum(spec: JobSpec) -> list[tuple[Role, int]]:
    """How many tasks of each role a start takes at least; what only the sum demands goes to the
    first roles that have more."""
    rest = spec.min_available - sum(role.min for role in spec.roles)
    wanted = []
    for role in spec.roles:
        more = min(rest, role.replicas - role.min)
        rest -= more
        if role.min + more:
            wanted.append((role, role.min + more))
    return wanted


def _sum(amounts: Iterable[int]) -> int:
    return sum(max(0, amount) for amount in amounts)


def _fitting(node: Node, role: Role) -> int:
    """How many tasks of the role the node could take by its free resources."""
    if node.misfit(role) is not None:
        return 0
    room = [node.free(r) // amount for r, amount in role.resources.items() if amount]
    slots = node.worker.slots
    if slots is not None:
        room.append(slots - len(node.charges))
    return min(room, default=1)
