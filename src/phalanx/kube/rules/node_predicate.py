"""Which nodes a pod may use, and which it prefers, as far as the node alone decides: node selector,
required and preferred node affinity, taints, cordons, and the nodes of bound volumes."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

import msgspec
from msgspec.structs import replace

from phalanx.core.reasons import NoNodeSatisfies, Reason
from phalanx.core.text import plural
from phalanx.kube.objects.pod import (
    KubePod,
    NodeSelectorTerm,
    PreferredNodeTerm,
    Toleration,
)
from phalanx.kube.rules.selectors import matches_any, matches_term, satisfies
from phalanx.kube.rules.taints import (
    AVOIDED,
    CORDONED,
    EXCLUDING,
    is_tolerated,
    normal_tolerations,
)
from phalanx.kube.rules.volumes import PodVolumes, VolumeNodes, is_in_zones
from phalanx.plan.model import NodeFacts, NodeTaint, TaskRequest

#: kube-scheduler's weights of the two preferences.
_AFFINITY_WEIGHT, _TAINT_WEIGHT = 2.0, 3.0
#: More taints than this make no difference.
_COUNTED_TAINTS = 3
#: The most taints that a reason names.
_NAMED_TAINTS = 3
#: Tolerates every taint.
ANY_TAINT = (Toleration(operator="Exists"),)


class PodNodes(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The nodes that a pod may use."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[NodeSelectorTerm, ...] | None = None  #: one term must match; None: no affinity
    volumes: tuple[VolumeNodes, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    refused: tuple[str, ...] = ()  #: nodes whose kubelet has refused such a pod

    @property
    def conditions(self) -> int:
        return len(self.selector) + (self.affinity is not None) + len(self.volumes)

    def matches(self, node: NodeFacts) -> bool:
        return (
            all(node.labels.get(key) == value for key, value in self.selector)
            and (self.affinity is None or matches_any(node, self.affinity))
            and all(_can_use(node, volume) for volume in self.volumes)
            and node.name not in self.refused
            and all(
                is_tolerated(taint, self.tolerations)
                for taint in node.taints
                if taint.effect in EXCLUDING
            )
        )

    def unmatched(self, _closed: dict[str, str]) -> Reason:
        return NoNodeSatisfies((*self.rules(), "its tolerations"))

    def rules(self) -> dict[str, Callable[[NodeFacts], bool]]:
        """The rules about labels and volumes, each with whether a node satisfies it."""
        rules: dict[str, Callable[[NodeFacts], bool]] = {
            f"nodeSelector {key}={value}": partial(_has_label, key, value)
            for key, value in self.selector
        }
        if (affinity := self.affinity) is not None:
            rules["the required node affinity"] = lambda node: matches_any(node, affinity)
        if volumes := self.volumes:
            rules["the node affinity of its volumes"] = lambda node: all(
                _can_use(node, volume) for volume in volumes
            )
        return rules

    def unmet(self, nodes: Sequence[NodeFacts]) -> str:
        """How many of the nodes each rule excludes. For a pod that no node can run."""
        if not nodes:
            return "the scheduler has no nodes; add some, or check its option --nodes"
        of = f"of {plural(len(nodes), 'node')}"
        parts = []
        for rule, is_met in self.rules().items():
            matching = sum(map(is_met, nodes))
            if matching < len(nodes):
                parts.append((matching, f"{rule} matches {matching} {of}"))
        for taint, tainted in self._excluding_taints(nodes).most_common(_NAMED_TAINTS):
            have = "has" if tainted == 1 else "have"
            text = f"{tainted} {of} {have} the taint {_written(taint)}, which is not tolerated"
            if taint == CORDONED:
                text = f"{tainted} {of} {'is' if tainted == 1 else 'are'} cordoned"
            parts.append((len(nodes) - tainted, text))
        if refusing := sum(node.name in self.refused for node in nodes):
            text = f"the kubelets of {refusing} {of} have refused such a pod"
            parts.append((len(nodes) - refusing, text))
        # The rules that exclude most come first.
        texts = [text for _, text in sorted(parts, key=lambda part: part[0])]
        return "; ".join(texts)

    def _excluding_taints(self, nodes: Iterable[NodeFacts]) -> Counter[NodeTaint]:
        return Counter(
            taint
            for node in nodes
            for taint in {*node.taints}
            if taint.effect in EXCLUDING and not is_tolerated(taint, self.tolerations)
        )


def _has_label(key: str, value: str, node: NodeFacts) -> bool:
    return node.labels.get(key) == value


def _written(taint: NodeTaint) -> str:
    """The taint as `kubectl taint` writes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def without_nodes(request: TaskRequest, refused: tuple[str, ...]) -> TaskRequest:
    """The request, kept from some nodes."""
    if not refused or not isinstance(request.nodes, PodNodes):
        return request
    return replace(request, nodes=replace(request.nodes, refused=refused))


def _can_use(node: NodeFacts, volume: VolumeNodes) -> bool:
    """Whether a volume can be used on a node. Like Kubernetes, the affinity of a volume looks at
    labels only: fields in it always match."""
    terms_match = volume.terms is None or any(
        all(satisfies(node.labels, each) for each in term.match_expressions)
        for term in volume.terms
        if term.match_expressions or term.match_fields
    )
    return terms_match and is_in_zones(node, volume.zones)


class PodPreference(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The nodes that a pod prefers."""

    terms: tuple[PreferredNodeTerm, ...]
    tolerations: tuple[Toleration, ...]

    def penalty(self, node: NodeFacts) -> float:
        unmatched = total = 0
        for each in self.terms:
            total += each.weight
            unmatched += each.weight * (not matches_term(node, each.preference))
        affinity = unmatched / total if total else 0.0
        taints = sum(
            taint.effect == AVOIDED and not is_tolerated(taint, self.tolerations)
            for taint in node.taints
        )
        avoided = min(taints, _COUNTED_TAINTS) / _COUNTED_TAINTS
        weights = _AFFINITY_WEIGHT + _TAINT_WEIGHT
        return (_AFFINITY_WEIGHT * affinity + _TAINT_WEIGHT * avoided) / weights


def pod_nodes(pod: KubePod, volumes: PodVolumes) -> PodNodes:
    """The predicate of a pod."""
    return PodNodes(*required_labels(pod), volumes.nodes, normal_tolerations(pod.spec.tolerations))


def required_labels(
    pod: KubePod,
) -> tuple[tuple[tuple[str, str], ...], tuple[NodeSelectorTerm, ...] | None]:
    """The pod's node selector, and the terms of its required node affinity."""
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    required = None if node_affinity is None else node_affinity.required
    terms = None if required is None else required.node_selector_terms
    return tuple(sorted(pod.spec.node_selector.items())), terms


def pod_preference(pod: KubePod, *, has_avoided_taints: bool) -> PodPreference | None:
    """The preference of a pod; None if it has none. `has_avoided_taints`: some node has a taint
    that only puts it last."""
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    preferred = () if node_affinity is None else node_affinity.preferred
    preferred = tuple(each for each in preferred if each.weight > 0)
    if not preferred and not has_avoided_taints:
        return None
    tolerations = normal_tolerations(
        each for each in pod.spec.tolerations if each.effect in ("", AVOIDED)
    )
    return PodPreference(preferred, tolerations)


def unsupported_part(pod: KubePod) -> str | None:
    """The part of a pod's specification that Phalanx cannot place; None if there is none."""
    spec = pod.spec
    if spec.resource_claims:
        return "spec.resourceClaims (dynamic resource allocation)"
    if spec.workload_ref is not None:
        return "spec.workloadRef"
    for container in chain(spec.containers, spec.init_containers):
        for resource in container.resources.requests:
            if resource.startswith(_SHARED_GPUS):
                return f"resource {resource}, which needs an allocator of its own"
    return None


#: Parts of a GPU: which device has enough left is known only to an allocator of their own.
_SHARED_GPUS = (
    *("aliyun.com/gpu-mem", "aliyun.com/gpu-core", "koordinator.sh/gpu", "volcano.sh/vgpu"),
    *("volcano.sh/gpu-memory", "nvidia.com/gpumem", "nvidia.com/gpucores"),
)
