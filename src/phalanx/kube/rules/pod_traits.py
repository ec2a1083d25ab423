"""Which rules of the cluster concern which pods.

Pods that no rule concerns have no traits, so they are placed without a look at other pods. A pod
gets traits when it, or a pod that asks about it, appears.
"""

from collections import Counter

from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.host_ports import host_ports
from phalanx.kube.rules.placed_pods import PodTraits
from phalanx.kube.rules.pod_queries import NamespaceLabels, PodQuery, PodRules, rules_of
from phalanx.kube.rules.volumes import PodVolumes

_Label = tuple[str, str]
#: Traits are forgotten when there are more than this, most of them of pods that are gone.
_INTERNED = 1 << 14
_NONE: frozenset[PodQuery] = frozenset()


class PodTraitsIndex:
    def __init__(self, namespaces: NamespaceLabels) -> None:
        """`namespaces` are kept up to date by the caller."""
        self._namespaces = namespaces
        self._pods: dict[str, KubePod] = {}
        self._rules: dict[str, PodRules] = {}
        self._matched: dict[str, frozenset[PodQuery]] = {}
        self._by_label: dict[_Label, set[str]] = {}
        #: How many pods ask each query; and the queries by a label that every match has.
        self._asked: Counter[PodQuery] = Counter()
        self._anchored: dict[_Label | None, set[PodQuery]] = {}
        #: Equal traits are one object.
        self._interned: dict[PodTraits, PodTraits] = {}

    def put(self, pod: KubePod) -> set[str]:
        """Add a pod, or a new version of it; the uids of other pods whose traits have changed."""
        uid = pod.metadata.uid
        touched = self._drop(uid)
        self._pods[uid] = pod
        for label in pod.metadata.labels.items():
            self._by_label.setdefault(label, set()).add(uid)
        rules = self._rules[uid] = rules_of(pod, self._namespaces)
        for query in rules.queries() if rules.is_any else ():
            self._asked[query] += 1
            if self._asked[query] == 1:
                self._anchored.setdefault(_anchor(query), set()).add(query)
                touched |= self._affected(query)
        self._matched[uid] = self._queries_about(pod)
        return self._match_again(touched - {uid})

    def put_alike(self, pod: KubePod) -> None:
        """Take over a new version of a pod for which the same rules hold."""
        self._pods[pod.metadata.uid] = pod

    def remove(self, uid: str) -> set[str]:
        """Remove a pod; the uids of other pods whose traits have changed."""
        return self._match_again(self._drop(uid))

    def _drop(self, uid: str) -> set[str]:
        """Remove a pod and its queries; the pods that a query matched which is asked no more."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return set()
        for label in pod.metadata.labels.items():
            self._by_label[label].discard(uid)
            if not self._by_label[label]:
                del self._by_label[label]
        del self._matched[uid]
        touched: set[str] = set()
        for query in self._rules.pop(uid).queries():
            self._asked[query] -= 1
            if not self._asked[query]:
                del self._asked[query]
                anchor = _anchor(query)
                self._anchored[anchor].discard(query)
                if not self._anchored[anchor]:
                    del self._anchored[anchor]
                touched |= self._affected(query)
        return touched

    def _match_again(self, uids: set[str]) -> set[str]:
        """Find the queries about these pods again; the pods for which they have changed."""
        changed = set()
        for uid in uids:
            matched = self._queries_about(self._pods[uid])
            if matched != self._matched[uid]:
                self._matched[uid] = matched
                changed.add(uid)
        return changed

    def traits(self, uid: str, volumes: PodVolumes) -> PodTraits | None:
        """The traits of a pod; None if no rule concerns it."""
        pod, rules, matched = self._pods[uid], self._rules[uid], self._matched[uid]
        ports = host_ports(pod)
        if not (matched or rules.is_any or ports or volumes.attached or volumes.exclusive):
            return None
        traits = PodTraits(matched, rules, ports, volumes.attached, volumes.exclusive)
        if len(self._interned) > _INTERNED:
            self._interned.clear()
        return self._interned.setdefault(traits, traits)

    def _queries_about(self, pod: KubePod) -> frozenset[PodQuery]:
        """The queries that match a pod."""
        if not self._anchored:
            return _NONE
        anchors = (None, *pod.metadata.labels.items())
        return frozenset(
            query
            for anchor in anchors
            for query in self._anchored.get(anchor, ())
            if query.matches(pod, self._namespaces)
        )

    def _affected(self, query: PodQuery) -> set[str]:
        """The pods that a query matches."""
        anchor = _anchor(query)
        candidates = self._pods if anchor is None else self._by_label.get(anchor, set())
        pods = ((uid, self._pods[uid]) for uid in candidates)
        return {uid for uid, pod in pods if query.matches(pod, self._namespaces)}


def _anchor(query: PodQuery) -> _Label | None:
    """A label that every pod which the query matches has."""
    for term in query.terms:
        if term.query is not None and term.query.anchor is not None:
            return term.query.anchor
    return None
