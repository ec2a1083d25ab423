"""A node as the planner's row: what it offers, and what every pod on it takes."""

from collections.abc import Iterable
from typing import NamedTuple

from phalanx.kube.model.amounts import PODS, allocatable, exact
from phalanx.kube.objects.cluster import KubeNode
from phalanx.kube.rules.taints import CORDONED, taints_of
from phalanx.plan.state.nodes import NodeSpec


class PodOnNode(NamedTuple):
    """What a pod takes of its node."""

    resources: tuple[tuple[str, int], ...]
    is_fixed: bool  #: it belongs to the node: a pod of a DaemonSet, or a static pod
    is_own: bool  #: Phalanx has placed it


def node_row(node: KubeNode, pods: Iterable[PodOnNode]) -> NodeSpec:
    """The row of a node with these pods, which are all that have not finished.

    What fixed pods take is not capacity: it will never be free. What pods of other schedulers take
    is not shared by the queues, and neither is a cordoned node.
    """
    capacity = allocatable(node.status.allocatable)
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
    occupants = fixed = 0
    for pod in pods:
        occupants += not pod.is_fixed
        fixed += pod.is_fixed
        for resource, amount in pod.resources:
            if pod.is_fixed:
                capacity[resource] = capacity.get(resource, 0) - amount
                continue
            used[resource] = used.get(resource, 0) + amount
            if not pod.is_own:
                foreign[resource] = foreign.get(resource, 0) + amount
    taints = taints_of(node)
    slots = int(exact(node.status.allocatable.get(PODS, "0"))) - fixed
    return NodeSpec(
        capacity,
        used,
        node.metadata.labels,
        slots,
        occupants,
        taints=taints,
        unshared=capacity if CORDONED in taints else foreign,
    )


def is_overcommitted(row: NodeSpec) -> bool:
    """Whether the pods of a node request more than it offers."""
    if row.slots is not None and row.occupants > row.slots:
        return True
    return any(amount > row.resources.get(name, 0) for name, amount in row.used.items())
