"""Rules between pods, against a direct reading of what kube-scheduler's documentation says."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kube_objects import kube_pod

from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.host_ports import host_ports
from phalanx.kube.rules.placed_pods import PlacedPods, PodTraits
from phalanx.kube.rules.pod_queries import PodQuery, rules_of
from phalanx.kube.rules.volumes import AttachedVolume
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable

HOST, ZONE = "kubernetes.io/hostname", "zone"
CPU = (("cpu", 1000),)
NAMESPACES = {"default": {"team": "x"}, "other": {"team": "y"}}


def table_of(*zones: str | None) -> NodeTable:
    """Nodes n0, n1 … in these zones; None: without the label."""
    table = NodeTable()
    for n, zone in enumerate(zones):
        labels = {HOST: f"n{n}"} | ({} if zone is None else {ZONE: zone})
        table.put(f"n{n}", NodeSpec({"cpu": 8000}, {}, labels))
    return table


def term(labels: dict[str, str], key: str = ZONE, **fields: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **fields}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def spread(labels: dict[str, str], key: str = ZONE, **fields: Any) -> dict[str, Any]:
    selector = {"matchLabels": labels}
    constraint = {"topologyKey": key, "labelSelector": selector, "maxSkew": 1}
    return {"whenUnsatisfiable": "DoNotSchedule", **constraint, **fields}


def traits_of(pod: KubePod, all_pods: Iterable[KubePod], **fields: Any) -> PodTraits:
    queries = {query for each in all_pods for query in rules_of(each, NAMESPACES).queries()}
    matched = frozenset(query for query in queries if query.matches(pod, NAMESPACES))
    return PodTraits(matched, rules_of(pod, NAMESPACES), host_ports(pod), **fields)


def allowed(table: NodeTable, pod: KubePod, placed: Sequence[KubePod]) -> list[str]:
    """The nodes that the rules allow for a pod beside the placed ones."""
    pods = PlacedPods()
    everyone = [*placed, pod]
    for each in placed:
        pods.place(traits_of(each, everyone), table.index[each.spec.node_name], 1)
    restriction = pods.restriction(traits_of(pod, everyone), table)
    names = [name for name in table.names if name is not None]
    if restriction is None or restriction.nodes is None:
        return names
    return [name for name in names if restriction.nodes[table.index[name]]]


def web(node: str, **fields: Any) -> KubePod:
    return kube_pod("web", **{"labels": {"app": "web"}, "node": node} | fields)


def test_a_pod_goes_to_the_domain_of_the_pods_it_wants() -> None:
    table = table_of("a", "a", "b", None)
    pod = kube_pod(affinity=near(term({"app": "web"})))
    assert allowed(table, pod, [web("n0")]) == ["n0", "n1"]
    assert allowed(table, pod, []) == []
    assert allowed(table, pod, [web("n3")]) == []
    assert allowed(table, pod, [web("n0", namespace="other")]) == []


def test_the_first_pod_of_a_series_may_go_anywhere_in_the_topology() -> None:
    table = table_of("a", "b", None)
    pod = kube_pod(labels={"app": "web"}, affinity=near(term({"app": "web"})))
    assert allowed(table, pod, []) == ["n0", "n1"]
    assert allowed(table, pod, [web("n1")]) == ["n1"]


def test_pods_count_for_an_affinity_only_if_they_match_all_of_its_terms() -> None:
    table = table_of("a", "b")
    both = near(term({"app": "web"}), term({"tier": "x"}, HOST))
    pod = kube_pod(affinity=both)
    assert allowed(table, pod, [web("n0")]) == []
    assert allowed(table, pod, [web("n0", labels={"app": "web", "tier": "x"})]) == ["n0"]


def test_anti_affinity_holds_in_both_directions() -> None:
    table = table_of("a", "a", "b", None)
    against = apart(term({"app": "web"}))
    assert allowed(table, kube_pod(affinity=against), [web("n0")]) == ["n2", "n3"]
    lonely = kube_pod("lonely", node="n2", affinity=against)
    pod = kube_pod(labels={"app": "web"})
    assert allowed(table, pod, [lonely]) == ["n0", "n1", "n3"]
    assert allowed(table, kube_pod(), [lonely]) == ["n0", "n1", "n2", "n3"]


def test_a_term_can_name_namespaces_or_select_them() -> None:
    table = table_of("a", "b")
    other = web("n0", namespace="other")
    selecting: tuple[dict[str, Any], ...] = (
        {"namespaces": ["other"]},
        {"namespaceSelector": {"matchLabels": {"team": "y"}}},
        {"namespaceSelector": {}},
    )
    for fields in selecting:
        pod = kube_pod(affinity=apart(term({"app": "web"}, **fields)))
        assert allowed(table, pod, [other]) == ["n1"], fields
    pod = kube_pod(affinity=apart({"topologyKey": ZONE, "namespaceSelector": {}}))
    assert allowed(table, pod, [other]) == ["n0", "n1"], "without a selector no pod matches"


@pytest.mark.parametrize(
    ("mine", "theirs", "free"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"hostPort": 80, "protocol": "UDP"}, {"hostPort": 80}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
    ],
)
def test_a_host_port_is_taken_once_per_node_and_address(
    mine: dict[str, Any], theirs: dict[str, Any], *, free: bool
) -> None:
    table = table_of("a", "b")

    def with_port(port: dict[str, Any], **fields: Any) -> KubePod:
        return kube_pod(containers=[{"name": "c", "ports": [port]}], **fields)

    expected = ["n0", "n1"] if free else ["n1"]
    assert allowed(table, with_port(mine), [with_port(theirs, node="n0")]) == expected


def test_pods_are_spread_evenly_over_the_domains_that_they_may_use() -> None:
    table = table_of("a", "a", "b", "c", None)
    labels = {"app": "web"}
    constraint = spread(labels)
    pod = kube_pod(labels=labels, topologySpreadConstraints=[constraint])
    assert allowed(table, pod, [web("n0")]) == ["n2", "n3"]
    assert allowed(table, pod, [web("n0"), web("n2"), web("n3")]) == ["n0", "n1", "n2", "n3"]
    leaving = web("n0", terminating=True)
    assert allowed(table, pod, [leaving]) == ["n0", "n1", "n2", "n3"]
    domains = spread(labels, minDomains=4)
    pod = kube_pod(labels=labels, topologySpreadConstraints=[domains])
    placed = [web("n0"), web("n2"), web("n3")]
    assert allowed(table, pod, placed) == []
    pod = kube_pod(labels=labels, topologySpreadConstraints=[constraint], nodeSelector={HOST: "n0"})
    assert allowed(table, pod, [web("n0"), web("n0")]) == ["n0", "n1", "n2", "n3"]


def test_a_claim_for_one_pod_is_used_by_one_pod() -> None:
    pods, table = PlacedPods(), table_of("a", "b")
    traits = PodTraits(exclusive=("default/data",))
    pods.place(traits, 0, 1)
    restriction = pods.restriction(traits, table)
    assert restriction is not None
    assert restriction.nodes is not None
    assert not restriction.nodes.any()
    assert restriction.rules == ("claim default/data, which one pod at a time can use",)
    pods.place(traits, 0, -1)
    free = pods.restriction(traits, table)
    assert free is not None
    assert free.rules == ()


def test_a_volume_counts_once_per_node_towards_the_attach_limit() -> None:
    pods, table = PlacedPods(), table_of("a", "b")
    pods.attach_limits = {0: {"d": 1}}
    first, second = (PodTraits(attached=(AttachedVolume("d", handle),)) for handle in "xy")
    pods.place(first, 0, 2)
    assert pods.restriction(first, table) is None
    restriction = pods.restriction(second, table)
    assert restriction is not None
    assert restriction.nodes is not None
    assert restriction.nodes[:2].tolist() == [False, True]
    pods.place(first, 0, -2)
    assert pods.restriction(second, table) is None


LABELS = st.fixed_dictionaries(
    {}, optional={"app": st.sampled_from("xy"), "tier": st.sampled_from("xy")}
)
TERMS = st.builds(term, LABELS, st.sampled_from([HOST, ZONE]))
PODS = st.fixed_dictionaries(
    {"labels": LABELS},
    optional={
        "affinity": st.one_of(
            st.lists(TERMS, min_size=1, max_size=2).map(lambda some: near(*some)),
            st.lists(TERMS, min_size=1, max_size=2).map(lambda some: apart(*some)),
        ),
        "topologySpreadConstraints": st.lists(
            st.builds(spread, LABELS, st.sampled_from([HOST, ZONE])), min_size=1, max_size=2
        ),
        "containers": st.just([{"name": "c", "ports": [{"hostPort": 80}]}]),
    },
)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=5),
    st.lists(PODS, min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_what_a_trial_places_is_what_one_pod_after_the_other_could_place(
    zones: list[str | None], shapes: list[dict[str, Any]], chance: random.Random
) -> None:
    """Every pod that a trial places was allowed beside the pods placed before it, and an undone
    trial leaves the pods as they were."""
    table = table_of(*zones)
    pods = [
        kube_pod(f"p{n}", **chance.choice(shapes), node=f"n{chance.randrange(len(zones))}")
        for n in range(chance.randrange(5))
    ]
    new = [kube_pod(f"new-{n}", **shape) for n, shape in enumerate(shapes)]
    everyone = [*pods, *new]
    placed = PlacedPods()
    for each in pods:
        placed.place(traits_of(each, everyone), table.index[each.spec.node_name], 1)
    base = FreeCapacity(table)
    base.placed = placed
    capacity = base.fork()
    roles = tuple(
        RoleRequest(
            f"r{n}",
            TaskRequest((("cpu", 1000),), traits=traits_of(pod, everyone)),
            (2 * n, 2 * n + 1),
            1,
        )
        for n, pod in enumerate(new)
    )
    gang = PendingGang("j", "j", 0, "q", 0, 0, len(roles), roles, len(roles))
    trial = PlacementTrial(gang, (capacity,))
    if trial.place_minimum():
        places = [(roles[each.task // 2], each.worker) for each in trial.assignments()]
        assert is_possible(places, placed, table)
        trial.undo()
    after = capacity.placed
    assert isinstance(after, PlacedPods)
    for role in roles:
        traits = role.request.traits
        one, other = placed.restriction(traits, table), after.restriction(traits, table)
        assert (one is None) == (other is None)
        assert one is None or other is None or (one.nodes == other.nodes).all()  # type: ignore[union-attr]


def is_possible(
    places: list[tuple[RoleRequest, str]], placed: PlacedPods, table: NodeTable
) -> bool:
    """Whether there is an order in which each pod is allowed beside those before it."""
    if not places:
        return True
    for n, (role, node) in enumerate(places):
        traits, at = role.request.traits, table.index[node]
        restriction = placed.restriction(traits, table)
        if restriction is None or restriction.nodes is None or restriction.nodes[at]:
            beside = placed.fork()
            beside.place(traits, at, 1)
            if is_possible(places[:n] + places[n + 1 :], beside, table):
                return True
    return False


def test_queries_that_nobody_asks_do_not_make_pods_differ() -> None:
    plain = [kube_pod(f"p{n}", labels={"job": f"j{n}"}) for n in range(3)]
    asker = kube_pod("q", affinity=apart(term({"job": "j1"})))
    traits = Counter(traits_of(pod, [*plain, asker]) for pod in plain)
    assert sorted(traits.values()) == [1, 2]
    (query,) = rules_of(asker, NAMESPACES).queries()
    assert isinstance(query, PodQuery)
