"""Taints of nodes and tolerations of pods. A cordoned node has a taint like any other."""

from collections.abc import Iterable

from phalanx.kube.objects.cluster import KubeNode
from phalanx.kube.objects.pod import Toleration
from phalanx.plan.model import NodeTaint

#: Taints with these effects keep pods away; `PreferNoSchedule` only puts the node last.
EXCLUDING = ("NoSchedule", "NoExecute")
AVOIDED = "PreferNoSchedule"
#: The taint of a cordoned node. Its controller adds it too, but may be late.
CORDONED = NodeTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def taints_of(node: KubeNode) -> tuple[NodeTaint, ...]:
    taints = [NodeTaint(taint.key, taint.value, taint.effect) for taint in node.spec.taints]
    if node.spec.unschedulable and CORDONED not in taints:
        taints.append(CORDONED)
    return tuple(taints)


def is_tolerated(taint: NodeTaint, tolerations: Iterable[Toleration]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: NodeTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def normal_tolerations(tolerations: Iterable[Toleration]) -> tuple[Toleration, ...]:
    """The tolerations in a normal form. How long a pod stays on a tainted node does not matter for
    the choice of its node."""
    bare = {Toleration(each.key, each.operator, each.value, each.effect) for each in tolerations}
    return tuple(sorted(bare, key=lambda each: (each.key, each.operator, each.value, each.effect)))
