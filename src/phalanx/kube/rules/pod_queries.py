"""Questions of pods about other pods: the terms of pod affinity, anti-affinity and topology spread.

A query matches pods by namespace and labels. Which queries of the cluster match a pod is all that
other pods' rules need to know about it.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from phalanx.kube.objects.metadata import LabelSelector, ObjectMeta, SelectorRequirement
from phalanx.kube.objects.pod import KubePod, PodAffinity, PodAffinityTerm, SpreadConstraint
from phalanx.kube.rules.node_predicate import ANY_TAINT, PodNodes, required_labels
from phalanx.kube.rules.selectors import LabelQuery, query_of
from phalanx.kube.rules.taints import normal_tolerations

#: Namespace → its labels.
NamespaceLabels = Mapping[str, Mapping[str, str]]

_NO_LABELS: Mapping[str, str] = {}


class PodTerm(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """Pods of some namespaces with some labels."""

    namespaces: tuple[str, ...]
    namespace_query: LabelQuery | None  #: further namespaces, by their labels
    query: LabelQuery | None  #: None: no pod

    def matches(self, pod: ObjectMeta, namespaces: NamespaceLabels) -> bool:
        if self.query is None or not self.query.matches(pod.labels):
            return False
        if pod.namespace in self.namespaces:
            return True
        labels = namespaces.get(pod.namespace, _NO_LABELS)
        return self.namespace_query is not None and self.namespace_query.matches(labels)


class PodQuery(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """Pods that match all of some terms."""

    terms: tuple[PodTerm, ...]
    skips_terminating: bool = False

    def matches(self, pod: KubePod, namespaces: NamespaceLabels) -> bool:
        if self.skips_terminating and pod.is_terminating:
            return False
        return all(term.matches(pod.metadata, namespaces) for term in self.terms)


class Affinities(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The required affinity of a pod: in each of the topologies there are pods that match."""

    query: PodQuery
    keys: tuple[str, ...]  #: labels of nodes
    is_own: bool  #: the pod matches the query itself, so it may be the first


class AntiAffinity(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """No pods that match in the same domain of a topology."""

    query: PodQuery
    key: str
    is_own: bool  #: the pod matches the query itself


class PodPreferenceTerm(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """Pods that match in the same domain of a topology are liked, or disliked."""

    query: PodQuery
    key: str
    weight: int  #: negative: disliked
    is_own: bool


class Spread(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A topology spread constraint."""

    query: PodQuery
    key: str
    max_skew: int
    min_domains: int
    is_own: bool
    nodes: PodNodes | None  #: the nodes that count; None: all


class PodRules(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What a pod requires of pods around it, and what it prefers."""

    affinities: Affinities | None = None
    anti_affinities: tuple[AntiAffinity, ...] = ()
    spreads: tuple[Spread, ...] = ()
    preferred: tuple[PodPreferenceTerm, ...] = ()
    preferred_spreads: tuple[Spread, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether there is any rule."""
        required = self.affinities or self.anti_affinities or self.spreads
        return bool(required or self.preferred or self.preferred_spreads)

    @property
    def prefers_by_own(self) -> bool:
        """Whether pods with the same rules change what the next of them prefers."""
        by_terms = any(term.is_own for term in self.preferred)
        return by_terms or any(spread.is_own for spread in self.preferred_spreads)

    def queries(self) -> Iterable[PodQuery]:
        if self.affinities is not None:
            yield self.affinities.query
        yield from (each.query for each in self.anti_affinities)
        yield from (each.query for each in (*self.spreads, *self.preferred_spreads))
        yield from (each.query for each in self.preferred)


_NO_RULES = PodRules()


def rules_of(pod: KubePod, namespaces: NamespaceLabels) -> PodRules:
    """The pod affinity, pod anti-affinity and topology spread of a pod, required and preferred."""
    affinity, spreads = pod.spec.affinity, pod.spec.topology_spread_constraints
    if affinity is None and not spreads:
        return _NO_RULES
    together = None if affinity is None else affinity.pod_affinity
    apart = None if affinity is None else affinity.pod_anti_affinity
    return PodRules(
        _affinities(pod, together, namespaces),
        tuple(
            AntiAffinity(query, term.topology_key, query.matches(pod, namespaces))
            for term in (() if apart is None else apart.required)
            for query in (PodQuery((_term(pod, term),)),)
        ),
        tuple(_spread(pod, each, namespaces) for each in spreads if _is_hard(each)),
        (
            *_preferred(pod, together, 1, namespaces),
            *_preferred(pod, apart, -1, namespaces),
        ),
        tuple(_spread(pod, each, namespaces) for each in spreads if not _is_hard(each)),
    )


def _is_hard(spread: SpreadConstraint) -> bool:
    return spread.when_unsatisfiable == "DoNotSchedule"


def _preferred(
    pod: KubePod, affinity: PodAffinity | None, sign: int, namespaces: NamespaceLabels
) -> Iterator[PodPreferenceTerm]:
    for each in () if affinity is None else affinity.preferred:
        query, key = PodQuery((_term(pod, each.pod_affinity_term),)), each.pod_affinity_term
        is_own = query.matches(pod, namespaces)
        yield PodPreferenceTerm(query, key.topology_key, sign * each.weight, is_own)


def _affinities(
    pod: KubePod, affinity: PodAffinity | None, namespaces: NamespaceLabels
) -> Affinities | None:
    if affinity is None or not affinity.required:
        return None
    query = PodQuery(tuple(_term(pod, term) for term in affinity.required))
    keys = tuple(sorted({term.topology_key for term in affinity.required}))
    return Affinities(query, keys, query.matches(pod, namespaces))


def _term(pod: KubePod, term: PodAffinityTerm) -> PodTerm:
    """The term in a normal form. The API server has added `matchLabelKeys` to the selector."""
    given, selector = term.namespaces, term.namespace_selector
    own = not given and selector is None
    return PodTerm(
        (pod.metadata.namespace,) if own else tuple(sorted(set(given))),
        None if selector is None else query_of(selector),
        None if term.label_selector is None else query_of(term.label_selector),
    )


def _spread(pod: KubePod, given: SpreadConstraint, namespaces: NamespaceLabels) -> Spread:
    labels = pod.metadata.labels
    same = (
        SelectorRequirement(key, "In", (labels[key],))
        for key in given.match_label_keys
        if key in labels
    )
    selector = None
    if given.label_selector is not None or given.match_label_keys:
        selector = query_of(given.label_selector or LabelSelector(), *same)
    term = PodTerm((pod.metadata.namespace,), None, selector)
    query = PodQuery((term,), skips_terminating=True)
    return Spread(
        query,
        given.topology_key,
        given.max_skew,
        given.min_domains or 1,
        query.matches(pod, namespaces),
        _counted_nodes(pod, given),
    )


def _counted_nodes(pod: KubePod, given: SpreadConstraint) -> PodNodes | None:
    """The nodes among which pods are spread."""
    by_labels = given.node_affinity_policy != "Ignore"
    by_taints = given.node_taints_policy == "Honor"
    if not by_labels and not by_taints:
        return None
    selector, affinity = required_labels(pod) if by_labels else ((), None)
    tolerations = normal_tolerations(pod.spec.tolerations) if by_taints else ANY_TAINT
    return PodNodes(selector, affinity, (), tolerations)
