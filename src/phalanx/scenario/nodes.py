"""The nodes of a scenario."""

from phalanx.core.model import Protocol, Worker
from phalanx.core.node import DEVICE, Node
from phalanx.scenario.file_format import NodeForm


def empty_node(form: NodeForm) -> Node:
    return Node(
        Worker(
            id=form.name,
            incarnation="",
            protocol=Protocol.PLAIN,
            address=form.name,
            born_at=0,
            registered_at=0,
            resources=form.resources,
            labels=form.labels,
        )
    )


def pick_devices(node: Node, thousandths: int) -> tuple[int, ...]:
    """Where too much runs, some of it is on devices that the node does not have."""
    picked = node.pick_devices(thousandths)
    if picked is not None:
        return picked
    first = max((len(node.devices) - 1, *node.missing_devices())) + 1
    return tuple(range(first, first + max(1, thousandths // DEVICE)))
