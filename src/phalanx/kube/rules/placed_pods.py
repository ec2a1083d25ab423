"""The rules between pods that depend on where pods are: host ports, pod affinity and anti-affinity,
topology spread, attach limits, and claims for one pod. Preferred rules are penalties.

A pod is known here by its traits: its own rules, and the queries of other pods that match it.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar, cast

import msgspec
import numpy as np

from phalanx.kube.rules.host_ports import HostPort
from phalanx.kube.rules.pod_queries import Affinities, PodQuery, PodRules, Spread
from phalanx.kube.rules.volumes import AttachedVolume
from phalanx.plan.state.nodes import Bools, Floats, Ints, NodeTable
from phalanx.plan.state.placement_rules import Restriction

Key = TypeVar("Key", bound=Hashable)
Place = TypeVar("Place", bound=Hashable)


class PodTraits(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What rules ask about a pod, and its own rules."""

    matched_by: frozenset[PodQuery] = frozenset()
    rules: PodRules = PodRules()
    ports: tuple[HostPort, ...] = ()
    attached: tuple[AttachedVolume, ...] = ()
    exclusive: tuple[str, ...] = ()


class _Counts(Generic[Key, Place]):
    """Numbers by key and place. A fork shares them until one of the two changes them."""

    __slots__ = ("_by_key",)

    def __init__(self, by_key: dict[Key, dict[Place, int]] | None = None) -> None:
        self._by_key = {} if by_key is None else by_key

    def fork(self) -> "_Counts[Key, Place]":
        return _Counts(self._by_key.copy())

    def add(self, key: Key, place: Place, count: int) -> None:
        counts = self._by_key.get(key, {}).copy()
        counts[place] = counts.get(place, 0) + count
        if not counts[place]:
            del counts[place]
        if counts:
            self._by_key[key] = counts
        else:
            self._by_key.pop(key, None)

    def of(self, key: Key) -> Mapping[Place, int]:
        """By place: the number, where it is not 0."""
        return self._by_key.get(key, {})


class PlacedPods:
    """The pods on all nodes. See `PlacedTasks` in the planner."""

    def __init__(self) -> None:
        #: Pods that match a query.
        self._matching: _Counts[PodQuery, int] = _Counts()
        #: By query: pods that keep away pods which match it, and the label of nodes.
        self._repelling: _Counts[PodQuery, tuple[str, int]] = _Counts()
        #: By query: pods that like or dislike pods which match it, with the label of nodes and the
        #: weight.
        self._attracting: _Counts[PodQuery, tuple[str, int, int]] = _Counts()
        #: By protocol and port: addresses and nodes.
        self._ports: _Counts[tuple[str, int], tuple[str, int]] = _Counts()
        self._attached: _Counts[AttachedVolume, int] = _Counts()
        self._claimed: _Counts[str, int] = _Counts()
        #: By node and driver: how many volumes can be attached.
        self.attach_limits: dict[int, Mapping[str, int]] = {}
        #: By node and driver: how many volumes are attached.
        self._driver_use: dict[int, dict[str, int]] = {}
        #: Answers since the last change. Only a fork keeps them: its nodes do not change.
        self._answers: dict[Hashable, Restriction | None] | None = None

    def fork(self) -> "PlacedPods":
        fork = PlacedPods.__new__(PlacedPods)
        counts = ("_matching", "_repelling", "_attracting", "_ports", "_attached", "_claimed")
        for name in counts:
            setattr(fork, name, getattr(self, name).fork())
        fork.attach_limits, fork._answers = self.attach_limits, {}  # noqa: SLF001
        fork._driver_use = self._driver_use.copy()  # noqa: SLF001
        return fork

    # Writing

    def place(self, traits: Hashable, node: int, count: int) -> None:
        """Add so many pods to a node; a negative number removes them."""
        pod = cast("PodTraits", traits)
        if self._answers:
            self._answers.clear()
        for query in pod.matched_by:
            self._matching.add(query, node, count)
        for each in pod.rules.anti_affinities:
            self._repelling.add(each.query, (each.key, node), count)
        for term in pod.rules.preferred:
            self._attracting.add(term.query, (term.key, term.weight, node), count)
        for port in pod.ports:
            self._ports.add((port.protocol, port.port), (port.address, node), count)
        for claim in pod.exclusive:
            self._claimed.add(claim, node, count)
        for volume in pod.attached:
            before = self._attached.of(volume).get(node, 0)
            self._attached.add(volume, node, count)
            after = self._attached.of(volume).get(node, 0)
            if bool(before) != bool(after):
                use = dict(self._driver_use.get(node, {}))
                use[volume.driver] = use.get(volume.driver, 0) + (1 if after else -1)
                self._driver_use[node] = use

    # Reading

    def restriction(self, traits: Hashable, table: NodeTable) -> Restriction | None:
        """Where one more pod may go; None: on every node."""
        if self._answers is None:
            return self._restriction(cast("PodTraits", traits), table)
        if traits not in self._answers:
            self._answers[traits] = self._restriction(cast("PodTraits", traits), table)
        return self._answers[traits]

    def _restriction(self, pod: PodTraits, table: NodeTable) -> Restriction | None:
        nodes = np.ones(table.open.shape, np.bool_)
        rules: list[str] = []
        for rule, allowed in self._allowed(pod, table):
            if not bool(allowed[table.open].all()):
                rules.append(rule)
            nodes &= allowed
        one_by_one, per_node = self._effect_on_equals(pod, table)
        penalty = self._penalty(pod, table)
        if not rules and per_node is None and not one_by_one and penalty is None:
            return None
        return Restriction(nodes, per_node, one_by_one, tuple(dict.fromkeys(rules)), penalty)

    def _penalty(self, pod: PodTraits, table: NodeTable) -> Floats | None:
        """How little the pod prefers each node, from 0 to 1, because of the pods there; None if
        all nodes are alike. Pods that are there may like or dislike the pod, too."""
        likes: Floats = np.zeros(table.open.shape)
        for each in pod.rules.preferred:
            for node, count in self._matching.of(each.query).items():
                likes += _in_domain_of(node, each.key, table) * (count * each.weight)
        for query in pod.matched_by:
            for (key, weight, node), count in self._attracting.of(query).items():
                likes += _in_domain_of(node, key, table) * (count * weight)
        crowds: Floats = np.zeros(table.open.shape)
        for spread in pod.rules.preferred_spreads:
            for node, count in self._matching.of(spread.query).items():
                crowds += _in_domain_of(node, spread.key, table) * count
        parts = [_scaled(each, table) for each in (-likes, crowds)]
        present = [each for each in parts if each is not None]
        return np.mean(present, axis=0) if present else None

    def _allowed(self, pod: PodTraits, table: NodeTable) -> Iterator[tuple[str, Bools]]:
        """Each rule in words, and the nodes that it allows."""
        for port in pod.ports:
            yield f"host port {port.port}", _all_but(self._taken(port), table)
        if pod.rules.affinities is not None:
            yield "pod affinity", self._near(pod.rules.affinities, table)
        for each in pod.rules.anti_affinities:
            counts = self._matching.of(each.query)
            yield "pod anti-affinity", _outside(counts, each.key, table)
        for query in pod.matched_by:
            holders = self._repelling.of(query)
            for label in {label for label, _ in holders}:
                at = [node for key, node in holders if key == label]
                yield "the pod anti-affinity of other pods", _outside(at, label, table)
        for spread in pod.rules.spreads:
            yield f"topology spread over {spread.key}", self._even(pod, spread, table)
        for claim in pod.exclusive:
            if self._claimed.of(claim):
                yield f"claim {claim}, which one pod at a time can use", _none(table)
        if pod.attached:
            yield "the number of volumes per node", self._attachable(pod, table)

    def _taken(self, port: HostPort) -> list[int]:
        """The nodes on which a port is taken."""
        taken = self._ports.of((port.protocol, port.port))
        return [node for address, node in taken if port.collides_with(address)]

    def _near(self, affinities: Affinities, table: NodeTable) -> Bools:
        """The nodes in whose domains there are pods that match."""
        counts = self._matching.of(affinities.query)
        labelled = np.ones(table.open.shape, np.bool_)
        near = labelled.copy()
        is_anywhere = False
        for key in affinities.keys:
            codes, _ = table.domains(key)
            labelled &= codes >= 0
            domains = _domains_of(counts, codes)
            is_anywhere |= bool(domains)
            near &= np.isin(codes, domains)
        if not is_anywhere and affinities.is_own:
            return labelled
        return near & labelled

    def _even(self, pod: PodTraits, spread: Spread, table: NodeTable) -> Bools:
        """The nodes on which one more pod leaves the domains even enough."""
        codes, _ = table.domains(spread.key)
        counted = table.matching(spread.nodes)
        for each in pod.rules.spreads:
            counted = counted & (table.domains(each.key)[0] >= 0)
        domains = np.unique(codes[counted])
        if not len(domains):
            return np.asarray(codes >= 0)
        by_domain: Ints = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
        for node, count in self._matching.of(spread.query).items():
            if counted[node]:
                by_domain[codes[node]] += count
        least = int(by_domain[domains].min()) if len(domains) >= spread.min_domains else 0
        even = by_domain[np.maximum(codes, 0)] + spread.is_own - least <= spread.max_skew
        return np.asarray(even & (codes >= 0))

    def _attachable(self, pod: PodTraits, table: NodeTable) -> Bools:
        """The nodes to which the pod's volumes can be attached."""
        allowed = np.ones(table.open.shape, np.bool_)
        for node, limits in self.attach_limits.items():
            new: dict[str, int] = {}
            for volume in pod.attached:
                if not self._attached.of(volume).get(node):
                    new[volume.driver] = new.get(volume.driver, 0) + 1
            use = self._driver_use.get(node, {})
            allowed[node] = all(
                use.get(driver, 0) + count <= limits[driver]
                for driver, count in new.items()
                if driver in limits
            )
        return allowed

    def _effect_on_equals(self, pod: PodTraits, table: NodeTable) -> tuple[bool, int | None]:
        """Whether each pod changes where the next one with these traits may go in ways other than
        on its own node; and the most of them on one node."""
        affinities = pod.rules.affinities
        one_by_one = affinities is not None and affinities.is_own
        one_by_one |= any(spread.is_own for spread in pod.rules.spreads)
        one_by_one |= pod.rules.prefers_by_own
        per_node = 1 if pod.ports else None
        if pod.exclusive:
            one_by_one = True
        for each in pod.rules.anti_affinities:
            if each.is_own:
                codes, _ = table.domains(each.key)
                is_node = int(np.bincount(codes[codes >= 0]).max(initial=0)) <= 1
                if is_node and (codes[: len(table)] >= 0).all():
                    per_node = 1
                else:
                    one_by_one = True
        return one_by_one, per_node


def _in_domain_of(node: int, key: str, table: NodeTable) -> Bools:
    """The nodes that share a domain with a node."""
    codes, _ = table.domains(key)
    return np.asarray((codes == codes[node]) & (codes >= 0))


def _scaled(amounts: Floats, table: NodeTable) -> Floats | None:
    """The amounts from 0, the least of all nodes, to 1; None if they are equal."""
    there = amounts[table.open]
    least, most = (float(there.min()), float(there.max())) if len(there) else (0.0, 0.0)
    return None if most <= least else np.clip((amounts - least) / (most - least), 0.0, 1.0)


def _domains_of(nodes: Iterable[int], codes: Ints) -> list[int]:
    """The domains of these nodes."""
    return sorted({int(codes[node]) for node in nodes if codes[node] >= 0})


def _outside(nodes: Iterable[int], key: str, table: NodeTable) -> Bools:
    """The nodes that share no domain with these nodes."""
    codes, _ = table.domains(key)
    return np.isin(codes, _domains_of(nodes, codes), invert=True)


def _all_but(taken: list[int], table: NodeTable) -> Bools:
    allowed = np.ones(table.open.shape, np.bool_)
    allowed[taken] = False
    return allowed


def _none(table: NodeTable) -> Bools:
    return np.zeros(table.open.shape, np.bool_)
