"""Why a gang found no place: the first thing that stands in its way."""

from collections.abc import Iterable, Mapping

from phalanx.core.gang import Gang
from phalanx.core.node import Node
from phalanx.core.reasons import Fragmented, NeverFits, NoNodeMatches, NotEnough, Reason
from phalanx.core.spec import Role
from phalanx.plan.place import Room


def why(gang: Gang, room: Room, nodes: Mapping[str, Node]) -> Reason:
    for role in gang.job.spec.roles:
        if role.min or gang.job.spec.min_available:
            impossible = _impossible(role, nodes)
            if impossible is not None:
                return impossible
    return _short(gang, room)


def _impossible(role: Role, nodes: Mapping[str, Node]) -> Reason | None:
    """What not even the empty cluster could give to one task of the role."""
    matching = [node for node in nodes.values() if _matches(node, role)]
    if role.node_selector and not matching:
        return NoNodeMatches(role.node_selector)
    for resource, amount in role.resources.items():
        largest = max((n.worker.resources.get(resource, 0) for n in matching), default=0)
        if amount > largest:
            return NeverFits(resource, amount, largest)
    return None


def _matches(node: Node, role: Role) -> bool:
    return all(node.worker.labels.get(k) == v for k, v in role.node_selector.items())


def _short(gang: Gang, room: Room) -> Reason:
    """How much of the minimum fits now, and what is missing for the rest."""
    spec = gang.job.spec
    want = spec.min_available
    needed: dict[str, int] = {}
    for role in spec.roles:
        for resource, amount in role.resources.items():
            needed[resource] = needed.get(resource, 0) + amount * max(role.min, 1)
    free = {r: _sum(node.free(r) for node in room.nodes.values()) for r in needed}
    missing = [r for r, amount in needed.items() if amount > free[r]]
    fits = sum(_fitting(node, spec.roles[0]) for node in room.nodes.values())
    if missing or not needed:
        return NotEnough(want, min(fits, want), missing[0] if missing else "slots")
    best = max((_fitting(node, spec.roles[0]) for node in room.nodes.values()), default=0)
    return Fragmented("node", best)


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
