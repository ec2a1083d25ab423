"""What users read on pending pods: what keeps them from starting, with numbers, and the cure."""

from typing import Any

import pytest
from tests.kube_objects import kube_node, kube_pod
from tests.unit.test_kube_gangs import Cluster, ack, members, queue


def messages(cluster: Cluster) -> set[tuple[str, str]]:
    assert cluster.plan() == []
    return {(report.kind, report.message) for report in cluster.reports}


def test_each_rule_that_excludes_nodes_is_counted() -> None:
    cluster = Cluster(nodes=0)
    cluster.model.put_node(kube_node("plain"))
    cluster.model.put_node(kube_node("cordoned", unschedulable=True))
    taint = {"key": "dedicated", "value": "infra", "effect": "NoSchedule"}
    for name in ("t0", "t1"):
        cluster.model.put_node(kube_node(name, labels={"zone": "mars"}, taints=[taint]))
    cluster.put(kube_pod("p", nodeSelector={"zone": "mars", "disk": "ssd"}))
    assert messages(cluster) == {
        (
            "Unschedulable",
            (
                "no node can run the pod: nodeSelector disk=ssd matches 0 of 4 nodes; nodeSelector"
                " zone=mars matches 2 of 4 nodes; 2 of 4 nodes have the taint"
                " dedicated=infra:NoSchedule, which is not tolerated; 1 of 4 nodes is cordoned"
            ),
        )
    }


def test_a_rule_that_a_new_node_satisfies_is_counted_again() -> None:
    cluster = Cluster(nodes=0)
    cluster.put(kube_pod("p", nodeSelector={"zone": "mars"}))
    [(_, message)] = messages(cluster)
    assert message == (
        "no node can run the pod: the scheduler has no nodes; add some, or check its option --nodes"
    )
    cluster.model.put_node(kube_node("n"))
    cluster.model.advance(10**9)
    [(_, message)] = messages(cluster)
    assert message == "no node can run the pod: nodeSelector zone=mars matches 0 of 1 node"


def test_a_gang_above_a_limit_of_its_queue_never_fits() -> None:
    """Its own queue, or a queue above; with the limit and what to do."""
    cluster = Cluster(nodes=1, gpu=8)
    cluster.model.put_queue(queue("top", limit={"nvidia.com/gpu": 2}), is_volcano=False)
    cluster.model.put_queue(queue("team", parent="top"), is_volcano=False)
    labels = ack(min_available="3") | {"phalanx.dev/queue": "team"}
    cluster.put(*members(4, labels=labels))
    assert messages(cluster) == {
        (
            "QueueLimit",
            (
                "gang default/g: never fits: the gang needs 3 GPUs, the limit of queue top is 2;"
                " raise the limit, request less, or choose another queue"
            ),
        )
    }
    cluster.model.put_queue(queue("top", limit={"nvidia.com/gpu": 3}), is_volcano=False)
    assert len(cluster.bound()) == 3


def test_a_gang_whose_priority_is_too_high_for_its_queue_stays_pending() -> None:
    cluster = Cluster(nodes=1)
    cluster.model.put_queue(queue("low", maxPriority=10), is_volcano=False)
    labels = {"phalanx.dev/queue": "low"}
    cluster.put(kube_pod("p", labels=labels, priority=11))
    assert messages(cluster) == {
        (
            "GangNotReady",
            (
                "priority 11 exceeds the maxPriority of queue low, which is 10; use a lower"
                " PriorityClass, or choose another queue"
            ),
        )
    }


def test_a_gang_with_too_few_pods_says_so_and_names_the_policy_that_does_not_count_others() -> None:
    cluster = Cluster(nodes=1)
    cluster.put(*members(1, labels=ack(min_available="2")))
    missing = "1 of 2 pods exists; the others have not been created"
    assert messages(cluster) == {("GangNotReady", f"gang default/g: {missing}")}
    cluster.put(kube_pod("b", labels=ack(min_available="2"), schedulingGates=[{"name": "a/gate"}]))
    gated = "1 of 2 pods can be placed; 1 pod has the scheduling gate a/gate; the controller that"
    text = f"gang default/g: {gated} set a gate removes it"
    assert messages(cluster) == {("GangNotReady", text)}
    done: dict[str, Any] = {
        "labels": ack("h", min_available="4"),
        "node": "n0",
        "phase": "Succeeded",
    }
    cluster = Cluster(nodes=1)
    cluster.put(kube_pod("a", **done), kube_pod("b", **done))
    cluster.put(kube_pod("c", labels=ack("h", min_available="4")))
    policy = "the match policy only-waiting does not count the 2 running or done"
    text = f"gang default/h: only 1 of 4 pods are pending, and {policy}"
    assert messages(cluster) == {("GangNotReady", text)}


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        ([], "queue team does not exist"),
        ([("teams", {})], "queue team does not exist; did you mean teams?"),
        (
            [("team", {"parent": "reserch"}), ("research", {})],
            "queue team cannot be used: its parent reserch does not exist; did you mean research?",
        ),
        (
            [("team", {"parent": "up"}), ("up", {"parent": "gone"})],
            (
                "queue team cannot be used: its parent up cannot be used: queue gone, above it,"
                " does not exist"
            ),
        ),
        (
            [("team", {"parent": "up"}), ("up", {"parent": "team"})],
            (
                "queue team cannot be used: its parent up cannot be used: parents form a cycle: up,"
                " team"
            ),
        ),
        (
            [("team", {"weight": -1})],
            "queue team cannot be used: weight is -1; it must be at least 0",
        ),
    ],
)
def test_a_queue_that_cannot_be_used_says_which_part_is_at_fault(
    queues: list[tuple[str, dict[str, Any]]], text: str
) -> None:
    cluster = Cluster(nodes=1)
    for name, spec in queues:
        cluster.model.put_queue(queue(name, **spec), is_volcano=False)
    cluster.put(kube_pod("p", labels={"phalanx.dev/queue": "team"}))
    assert messages(cluster) == {("GangNotReady", text)}
