"""The nodes of a scenario, and the devices that its tasks occupy."""

from collections.abc import Iterable, Mapping

from phalanx.core.model import Protocol, Worker
from phalanx.core.node import DEVICE, GPU, Charge, Node
from phalanx.scenario.file_format import NodeEntry
from phalanx.scenario.gangs import ScenarioGang


def empty_node(entry: NodeEntry) -> Node:
    """The node without any task."""
    return Node(
        Worker(
            id=entry.name,
            incarnation="",
            protocol=Protocol.PLAIN,
            address=entry.name,
            born_at=0,
            registered_at=0,
            resources=entry.resources,
            labels=entry.labels,
        )
    )


def occupy(nodes: Mapping[str, Node], gangs: Iterable[ScenarioGang]) -> dict[str, tuple[int, ...]]:
    """Put all running tasks and gathered places on their nodes; the devices of each running task,
    by its name."""
    devices: dict[str, tuple[int, ...]] = {}
    for gang in gangs:
        for index, task in gang.placed:
            node = nodes[task.node or ""]
            devices[task.name] = _pick_devices(node, task.resources.get(GPU, 0))
            charge = Charge(0, task.resources, devices[task.name])
            node.charge((f"{gang.name}.{index}", 0), charge)
        for index, task in gang.pending:
            if task.held is not None:
                node = nodes[task.held]
                picked = _pick_devices(node, task.resources.get(GPU, 0))
                node.gather(f"{gang.name}.{index}", Charge(0, task.resources, picked))
    return devices


def _pick_devices(node: Node, thousandths: int) -> tuple[int, ...]:
    """Free devices of the node; if there are too few, numbers of devices that it does not have."""
    picked = node.pick_devices(thousandths)
    if picked is not None:
        return picked
    first = max((len(node.devices) - 1, *node.missing_devices())) + 1
    return tuple(range(first, first + max(1, thousandths // DEVICE)))
