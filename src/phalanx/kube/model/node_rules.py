"""How many nodes each rule of a pod excludes, in words, for pods that no node can run.

Every node is asked about every rule, so an answer is kept. While nodes change, it is at most half
a minute old.
"""

from collections.abc import Mapping

from phalanx.core.time_units import SECOND, Micros
from phalanx.kube.objects.cluster import KubeNode
from phalanx.kube.rules.node_predicate import PodNodes
from phalanx.kube.rules.taints import taints_of
from phalanx.plan.model import NodeFacts

_RENEWED: Micros = 30 * SECOND
_KEPT_ANSWERS = 1000


class NodeRules:
    def __init__(self, nodes: Mapping[str, KubeNode]) -> None:
        """`nodes` are followed: `note` is called before each change of them."""
        self._nodes = nodes
        self._version = 0
        #: By predicate: the version of the nodes, the time, and the sentence.
        self._answers: dict[PodNodes, tuple[int, Micros, str]] = {}

    def note(self, before: KubeNode | None, after: KubeNode | None) -> None:
        """Notice a change of a node."""
        if _facts(before) != _facts(after):
            self._version += 1

    def unmet(self, predicate: PodNodes, now: Micros) -> str:
        known = self._answers.get(predicate)
        if known is not None and (known[0] == self._version or now - known[1] < _RENEWED):
            return known[2]
        if len(self._answers) >= _KEPT_ANSWERS:
            self._answers.clear()
        facts = [each for node in self._nodes.values() if (each := _facts(node)) is not None]
        text = predicate.unmet(facts)
        self._answers[predicate] = (self._version, now, text)
        return text


def _facts(node: KubeNode | None) -> NodeFacts | None:
    if node is None:
        return None
    return NodeFacts(node.metadata.name, node.metadata.labels, taints_of(node))
