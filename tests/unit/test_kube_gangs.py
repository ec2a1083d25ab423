"""Pods and PodGroups of every dialect as gangs, planned, and the plan as calls."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import pytest
from tests.kube_objects import kube_node, kube_pod, kube_pod_group

from phalanx.core.reasons import NotSchedulable, Reason, WaitingForGroup, WaitingForMembers
from phalanx.core.spec.job import Match
from phalanx.core.time_units import SECOND
from phalanx.kube.gangs.gang_terms import GangKey
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.cluster import KubeNamespace, PodDisruptionBudget, PriorityClass
from phalanx.kube.objects.gang import KubeQueue, PodGroupStatus
from phalanx.kube.objects.metadata import LabelSelector
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.rules.selectors import query_of
from phalanx.kube.writes.calls import (
    AdmitGroup,
    BindGang,
    Call,
    Hold,
    PodReport,
    Preempt,
    TimeOutGang,
    calls_of,
    cleared_nominations,
    group_admissions,
    reports_of,
    timed_out_rounds,
)
from phalanx.kube.writes.output_groups import CreateGroup, DeleteGroup, output_changes
from phalanx.kube.writes.rounds import ROUND, BindRound, is_foreign_bind
from phalanx.manifest.gang_keys import GangFamily
from phalanx.plan.cycle import plan

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOW_MICROS = int(NOW.timestamp() * SECOND)
X_GROUP = "scheduling.x-k8s.io/pod-group"
ACK = "pod-group.scheduling.sigs.k8s.io/"
KOORDINATOR = "gang.scheduling.koordinator.sh/"


class Cluster:
    """A model whose calls are carried out at once."""

    def __init__(self, nodes: int = 2, **fields: Any) -> None:
        self.model = ClusterModel()
        self._ids = count(1)
        self.now = NOW
        for n in range(nodes):
            self.model.put_node(kube_node(f"n{n}", **{"gpu": 4} | fields))

    def put(self, *pods: KubePod) -> None:
        for pod in pods:
            self.model.put_pod(pod)

    def plan(self) -> list[Call]:
        """Plan and carry out the calls as far as the model knows them."""
        self.model.refresh()
        made = plan(self.model.state, int(self.now.timestamp() * SECOND))
        self.reasons: dict[str, Reason] = dict(made.reasons)
        calls = list(calls_of(made, self.model, lambda: f"r{next(self._ids)}"))
        self.reports = list(reports_of(made, self.model))
        self.model.state.accept(made)
        for call in calls:
            if isinstance(call, BindGang):
                places = {bind.pod.uid: bind.node for bind in call.binds}
                self.model.assume(places, call.round, self.now)
            elif isinstance(call, Hold):
                gang = self.model.gangs.gangs[call.gang]
                self.model.hold(gang, call.places, int(self.now.timestamp() * SECOND))
        self.model.refresh()
        return calls

    def bound(self) -> list[str]:
        """Plan; the names of the pods that are bound by it."""
        binds = [call for call in self.plan() if isinstance(call, BindGang)]
        return sorted(bind.pod.name for call in binds for bind in call.binds)

    def reason(self, job: str) -> Reason:
        return self.reasons[job]


def members(size: int, first: int = 0, *, gpu: int = 1, **fields: Any) -> Iterator[KubePod]:
    return (kube_pod(f"w{n}", gpu=gpu, **fields) for n in range(first, first + size))


def koordinator(name: str = "g", **keys: str) -> dict[str, str]:
    named = {f"{KOORDINATOR}{key.replace('_', '-')}": value for key, value in keys.items()}
    return {f"{KOORDINATOR}name": name, **named}


def ack(name: str = "g", **keys: str) -> dict[str, str]:
    return {f"{ACK}name": name} | {f"{ACK}{k.replace('_', '-')}": v for k, v in keys.items()}


NATIVE: dict[str, Any] = {"schedulingGroup": {"podGroupName": "g"}}
#: Each dialect with a minimum of 3: pods, PodGroup, family, match policy by default.
DIALECTS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, GangFamily, Match]] = {
    "koordinator": (
        {"annotations": koordinator(min_available="3")},
        None,
        GangFamily.POD_GROUP,
        Match.ONCE_SATISFIED,
    ),
    "ack": ({"labels": ack(min_available="3")}, None, GangFamily.POD_GROUP, Match.ONLY_WAITING),
    "ack with a PodGroup": (
        {"labels": ack()},
        {"minMember": 3},
        GangFamily.POD_GROUP,
        Match.ONLY_WAITING,
    ),
    "scheduler-plugins": (
        {"labels": {X_GROUP: "g"}},
        {"minMember": 3},
        GangFamily.POD_GROUP,
        Match.WAITING_AND_RUNNING,
    ),
    "older scheduler-plugins": (
        {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
        {"minMember": 3},
        GangFamily.POD_GROUP,
        Match.WAITING_AND_RUNNING,
    ),
    "volcano": (
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        {"minMember": 3},
        GangFamily.VOLCANO,
        Match.WAITING_RUNNING_SUCCEED,
    ),
    "kubernetes": (
        NATIVE,
        {"schedulingPolicy": {"gang": {"minCount": 3}}},
        GangFamily.NATIVE,
        Match.WAITING_AND_RUNNING,
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_declares_a_gang_that_is_bound_whole(dialect: str) -> None:
    fields, group, family, match = DIALECTS[dialect]
    job = GangKey(family, "default", "g").job
    cluster = Cluster(nodes=1, gpu=2)
    cluster.put(*members(3, **fields))
    assert cluster.bound() == []
    if group is not None:
        assert "PodGroup default/g does not exist" in str(cluster.reason(job))
        cluster.model.gangs.put_group(kube_pod_group(**group), family)
        assert cluster.bound() == []
    shortfall = "the gang needs 3 GPUs, at most 2 fit on the empty cluster"
    assert str(cluster.reason(job)) == f"never fits: {shortfall}"
    cluster.model.put_node(kube_node("n9", gpu=1))
    assert cluster.bound() == ["w0", "w1", "w2"]
    assert cluster.model.gangs.gangs[job].terms.match is match


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_gang_waits_for_its_members(dialect: str) -> None:
    fields, group, family, _ = DIALECTS[dialect]
    cluster = Cluster()
    if group is not None:
        cluster.model.gangs.put_group(kube_pod_group(**group), family)
    cluster.put(*members(2, **fields))
    assert cluster.bound() == []
    job = GangKey(family, "default", "g").job
    assert cluster.reason(job) == WaitingForMembers(2, 3)
    gated = kube_pod("w2", gpu=1, schedulingGates=[{"name": "x"}], **fields)
    cluster.put(gated)
    assert cluster.bound() == []
    cluster.put(kube_pod("w2", gpu=1, **fields))
    assert cluster.bound() == ["w0", "w1", "w2"]


@pytest.mark.parametrize(
    ("match", "done", "running", "starts"),
    [
        ("only-waiting", 0, 2, False),
        ("waiting-and-running", 0, 2, True),
        ("waiting-and-running", 1, 1, False),
        ("waiting-running-succeed", 1, 1, True),
        ("once-satisfied", 0, 2, True),
    ],
)
def test_the_match_policy_decides_which_members_count(
    match: str, done: int, running: int, *, starts: bool
) -> None:
    """A gang of three that has started: a member was replaced."""
    cluster = Cluster()
    fields: dict[str, Any] = {"labels": ack(min_available="3", match_policy=match)}
    cluster.put(*members(3, **fields))
    assert len(cluster.bound()) == 3
    for n in range(done):
        cluster.put(kube_pod(f"w{n}", gpu=1, node="n0", phase="Succeeded", **fields))
    for n in range(done, done + running):
        cluster.put(kube_pod(f"w{n}", gpu=1, node="n0", phase="Running", **fields))
    cluster.model.remove_pod("uid-default-w2")
    cluster.put(kube_pod("new", gpu=1, **fields))
    assert cluster.bound() == (["new"] if starts else [])
    if not starts:
        reason = cluster.reason("pod-group:default/g")
        assert "the match policy excludes the" in str(reason)


def test_pods_of_a_satisfied_gang_are_ordinary_pods() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    fields: dict[str, Any] = {"annotations": koordinator(min_available="2")}
    cluster.put(*members(2, **fields))
    assert cluster.bound() == ["w0", "w1"]
    cluster.put(*members(3, 2, **fields))
    assert cluster.bound() == ["w2", "w3"]
    (report,) = cluster.reports
    assert (report.pod.name, report.kind) == ("w4", "Unschedulable")


def test_members_above_the_minimum_are_bound_as_far_as_they_fit() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    cluster.model.gangs.put_group(kube_pod_group(minMember=2), GangFamily.POD_GROUP)
    cluster.put(*members(6, labels={X_GROUP: "g"}))
    assert len(cluster.bound()) == 4


def test_parts_that_contradict_each_other_are_named() -> None:
    cluster = Cluster()
    cluster.put(
        kube_pod("a", annotations=koordinator(min_available="2")),
        kube_pod("b", annotations=koordinator(min_available="3")),
        kube_pod("c", annotations=koordinator(min_available="2")),
    )
    assert cluster.bound() == []
    message = "the minimum is 3 on pod b, but 2 on pod a: all parts of a gang must agree"
    assert str(cluster.reason("pod-group:default/g")) == message
    assert {report.kind for report in cluster.reports} == {"GangNotReady"}


def test_a_value_that_cannot_be_read_is_named_with_its_pod() -> None:
    cluster = Cluster()
    cluster.put(kube_pod("a", annotations=koordinator(min_available="many")))
    cluster.plan()
    reason = str(cluster.reason("pod-group:default/g"))
    assert reason.startswith("pod default/a: metadata.annotations")
    assert "write a whole number" in reason


def test_annotations_of_koordinator_override_the_pod_group() -> None:
    cluster = Cluster()
    cluster.model.gangs.put_group(kube_pod_group(minMember=9), GangFamily.POD_GROUP)
    cluster.put(*members(2, annotations=koordinator(min_available="2")))
    assert cluster.bound() == ["w0", "w1"]


def test_a_pod_group_that_is_deleted_leaves_pending_members_waiting() -> None:
    cluster = Cluster()
    cluster.model.gangs.put_group(kube_pod_group(minMember=2), GangFamily.POD_GROUP)
    cluster.model.gangs.remove_group(GangKey(GangFamily.POD_GROUP, "default", "g"))
    cluster.put(*members(2, labels={X_GROUP: "g"}))
    assert cluster.bound() == []
    assert "does not exist" in str(cluster.reason("pod-group:default/g"))


def test_a_pending_pod_changes_its_gang_with_its_label() -> None:
    cluster = Cluster()
    cluster.put(*members(1, labels=ack("g", min_available="2")))
    cluster.put(kube_pod("x", labels=ack("h", min_available="2")))
    assert cluster.bound() == []
    cluster.put(kube_pod("x", labels=ack("g", min_available="2")))
    assert cluster.bound() == ["w0", "x"]
    assert "pod-group:default/h" not in cluster.model.gangs.gangs


def test_a_bound_pod_stays_in_its_gang_whatever_its_label_says() -> None:
    cluster = Cluster()
    cluster.put(*members(2, labels=ack(min_available="2")))
    assert cluster.bound() == ["w0", "w1"]
    cluster.put(kube_pod("w0", gpu=1, node="n0", labels=ack("h", min_available="1")))
    cluster.model.refresh()
    assert len(cluster.model.gangs.gangs["pod-group:default/g"].bound) == 2
    assert "pod-group:default/h" not in cluster.model.gangs.gangs


def test_a_minimum_that_is_raised_evicts_nothing() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    cluster.model.gangs.put_group(kube_pod_group(minMember=2), GangFamily.POD_GROUP)
    cluster.put(*members(2, labels={X_GROUP: "g"}))
    assert len(cluster.bound()) == 2
    cluster.model.gangs.put_group(kube_pod_group(minMember=4), GangFamily.POD_GROUP)
    cluster.put(*members(2, 2, labels={X_GROUP: "g"}))
    assert cluster.plan() == []
    hour = timedelta(hours=1)
    assert not list(timed_out_rounds(cluster.model, NOW + hour, timedelta(seconds=60)))


def test_members_of_another_scheduler_count_once_they_are_bound() -> None:
    cluster = Cluster()
    cluster.model.gangs.put_group(kube_pod_group(minMember=3), GangFamily.POD_GROUP)
    cluster.put(*members(2, labels={X_GROUP: "g"}))
    foreign: dict[str, Any] = {"gpu": 1, "labels": {X_GROUP: "g"}, "scheduler": "other"}
    cluster.put(kube_pod("foreign", **foreign))
    assert cluster.bound() == []
    cluster.put(kube_pod("foreign", node="n0", **foreign))
    assert cluster.bound() == ["w0", "w1"]


def test_a_basic_pod_group_is_not_a_gang() -> None:
    cluster = Cluster(nodes=1, gpu=1)
    group = kube_pod_group(schedulingPolicy={"basic": {}})
    cluster.model.gangs.put_group(group, GangFamily.NATIVE)
    cluster.put(*members(2, **NATIVE))
    assert cluster.bound() == ["w0"]


def test_the_tasks_of_a_volcano_job_have_minimums_of_their_own() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    group = kube_pod_group(minMember=3, minTaskMember={"ps": 1, "worker": 2})
    cluster.model.gangs.put_group(group, GangFamily.VOLCANO)

    def task(name: str, of: str) -> KubePod:
        keys = {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": of}
        return kube_pod(name, gpu=1, annotations=keys)

    cluster.put(*(task(f"worker-{n}", "worker") for n in range(3)))
    assert cluster.bound() == []
    cluster.put(task("ps-0", "ps"))
    assert len(cluster.bound()) == 4


# Groups


def grouped(name: str, *others: str, namespace: str = "default") -> dict[str, Any]:
    keys = koordinator(name, min_available="1", groups=json.dumps(list(others)))
    return {"annotations": keys, "namespace": namespace}


def test_gangs_of_a_group_start_together() -> None:
    cluster = Cluster(nodes=1, gpu=1)
    cluster.put(kube_pod("a", gpu=1, **grouped("ga", "default/ga", "default/gb")))
    assert cluster.bound() == []
    assert cluster.reason("pod-group:default/ga") == WaitingForGroup(("default/gb",))
    cluster.put(kube_pod("b", gpu=1, **grouped("gb")))
    assert cluster.bound() == [], "one of the two has no place"
    cluster.model.put_node(kube_node("n9", gpu=1))
    assert cluster.bound() == ["a", "b"]


def test_across_namespaces_both_gangs_must_name_each_other() -> None:
    cluster = Cluster()
    cluster.put(
        kube_pod("a", gpu=1, **grouped("ga", "other/gb")),
        kube_pod("b", gpu=1, **grouped("gb", namespace="other")),
    )
    assert cluster.bound() == ["b"], "a gang of another team is not held up"


def test_a_gang_that_another_namespace_does_not_name_waits_with_the_reason() -> None:
    cluster = Cluster(nodes=1, gpu=0)
    cluster.put(
        kube_pod("a", gpu=1, **grouped("ga", "other/gb")),
        kube_pod("b", gpu=1, **grouped("gb", namespace="other")),
    )
    cluster.plan()
    reason = cluster.reason("pod-group:default/ga")
    assert reason == NotSchedulable(
        "GangNotReady", "gang other/gb does not name default/ga in its groups"
    )
    cluster.put(kube_pod("b", gpu=1, **grouped("gb", "default/ga", namespace="other")))
    cluster.model.put_node(kube_node("n9", gpu=2))
    assert cluster.bound() == ["a", "b"]


# Non-strict gangs


def test_a_non_strict_gang_holds_places_until_its_waiting_time_ends() -> None:
    cluster = Cluster(nodes=1, gpu=3)
    cluster.put(*running_pods(1))
    keys = koordinator(min_available="3", mode="NonStrict", waiting_time="60s")
    cluster.put(*members(3, annotations=keys), kube_pod("other", gpu=2))
    calls = cluster.plan()
    assert [type(call) for call in calls] == [Hold]
    assert cluster.bound() == [], "the held places are not free for others"
    cluster.now += timedelta(seconds=61)
    timed_out, bound = cluster.plan()
    assert isinstance(timed_out, TimeOutGang)
    assert (len(timed_out.pods), timed_out.retries) == (3, False)
    assert isinstance(bound, BindGang)
    assert [bind.pod.name for bind in bound.binds] == ["other"]
    cluster.model.release(cluster.model.gangs.gangs["pod-group:default/g"], NOW_MICROS)
    keys[f"{KOORDINATOR}timeout"] = "true"
    cluster.put(*members(3, annotations=keys))
    assert cluster.bound() == []
    assert "waiting time has ended" in str(cluster.reason("pod-group:default/g"))


@pytest.mark.parametrize("is_on_group", [True, False])
def test_a_gang_is_tried_again_after_the_timeout_of_its_pod_group(*, is_on_group: bool) -> None:
    cluster = Cluster(nodes=1, gpu=3)
    cluster.put(*running_pods(1))
    mode = {f"{KOORDINATOR}mode": "NonStrict"}
    group = kube_pod_group(
        minMember=3, scheduleTimeoutSeconds=60, annotations=mode if is_on_group else {}
    )
    cluster.model.gangs.put_group(group, GangFamily.POD_GROUP)
    keys = koordinator() if is_on_group else koordinator() | mode
    cluster.put(*members(3, annotations=keys))
    assert [type(call) for call in cluster.plan()] == [Hold]
    cluster.now += timedelta(seconds=61)
    (timed_out,) = cluster.plan()
    assert isinstance(timed_out, TimeOutGang)
    assert timed_out.retries
    keys[f"{KOORDINATOR}waiting-time"] = "2m"
    cluster.put(*members(3, annotations=keys))
    assert cluster.plan() == [], "what the pods say comes first"
    cluster.now += timedelta(seconds=60)
    (timed_out,) = cluster.plan()
    assert isinstance(timed_out, TimeOutGang)
    assert not timed_out.retries


def test_a_held_place_is_lost_with_its_node() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    cluster.model.put_node(kube_node("n9", gpu=1))
    cluster.put(kube_pod("v", gpu=1, node="n9"))
    keys = koordinator(min_available="3", mode="NonStrict")
    cluster.put(*members(3, annotations=keys))
    assert [type(call) for call in cluster.plan()] == [Hold]
    cluster.model.remove_node("n0")
    cluster.model.put_node(kube_node("n1", gpu=3))
    assert cluster.bound() == ["w0", "w1", "w2"]


def test_a_strict_gang_holds_nothing_and_never_times_out() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    cluster.put(*members(3, annotations=koordinator(min_available="3", waiting_time="1s")))
    assert cluster.plan() == []
    cluster.now += timedelta(days=1)
    assert cluster.plan() == []


# Queues and priorities


def queue(name: str, **spec: Any) -> KubeQueue:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, KubeQueue)


def test_queues_limit_what_their_gangs_use() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    cluster.model.put_queue(queue("small", limit={"nvidia.com/gpu": "1"}), is_volcano=False)
    cluster.model.put_queue(queue("big", capability={"nvidia.com/gpu": 2}), is_volcano=True)
    labels = {"phalanx.dev/queue": "small"}
    cluster.put(*members(2, labels=labels))
    cluster.model.gangs.put_group(kube_pod_group(minMember=3, queue="big"), GangFamily.VOLCANO)
    keys = {"scheduling.k8s.io/group-name": "g"}
    cluster.put(*(kube_pod(f"v{n}", gpu=1, annotations=keys) for n in range(3)))
    assert cluster.bound() == ["w0"]
    kinds = {report.pod.name: report.kind for report in cluster.reports}
    assert kinds == dict.fromkeys(["w1", "v0", "v1", "v2"], "QueueLimit")


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (["a", "b"], "pod w0 is in queue a, but pod w1 in queue b"),
        (["c", "c"], "queue c does not exist"),
        (["b", "b"], "namespace default may not use queue b"),
    ],
)
def test_a_gang_without_a_usable_queue_stays_pending(labels: list[str], text: str) -> None:
    cluster = Cluster()
    cluster.model.put_queue(queue("a"), is_volcano=False)
    cluster.model.put_queue(queue("b", namespaces=["other"]), is_volcano=False)
    for n, label in enumerate(labels):
        keys = {"phalanx.dev/queue": label, **ack(min_available="2")}
        cluster.put(kube_pod(f"w{n}", labels=keys))
    assert cluster.bound() == []
    assert text in str(cluster.reason("pod-group:default/g"))


def test_the_namespace_names_a_queue_by_an_annotation() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    cluster.model.put_queue(queue("small", limit={"nvidia.com/gpu": "1"}), is_volcano=False)
    metadata = {"name": "default", "annotations": {"phalanx.dev/queue": "small"}}
    cluster.model.put_namespace(msgspec.convert({"metadata": metadata}, KubeNamespace))
    cluster.put(*members(2))
    assert cluster.bound() == ["w0"]


def test_a_gang_queues_as_its_least_important_member() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    keys = ack(min_available="2")
    cluster.put(
        kube_pod("a", gpu=1, labels=keys, priority=100),
        kube_pod("b", gpu=1, labels=keys, priority=1),
        kube_pod("c", gpu=2, priority=50, created="2026-01-01T12:00:00Z"),
    )
    assert cluster.bound() == ["c"]


def test_a_priority_class_of_the_pod_group_counts() -> None:
    cluster = Cluster(nodes=1, gpu=1)
    important = msgspec.convert({"metadata": {"name": "high"}, "value": 9}, PriorityClass)
    cluster.model.put_priority_class(important)
    group = kube_pod_group(minMember=1, priorityClassName="high", created="2026-01-01T20:00:00Z")
    cluster.model.gangs.put_group(group, GangFamily.VOLCANO)
    cluster.put(
        kube_pod("a", gpu=1),
        kube_pod("b", gpu=1, annotations={"scheduling.k8s.io/group-name": "g"}),
    )
    assert cluster.bound() == ["b"]


def test_a_running_gang_is_at_least_as_important_as_its_pod_group() -> None:
    """Else it would be evicted for a gang that it evicts as soon as it is pending again."""
    cluster = Cluster(nodes=1, gpu=2)
    important = msgspec.convert({"metadata": {"name": "high"}, "value": 9}, PriorityClass)
    cluster.model.put_priority_class(important)
    group = kube_pod_group(minMember=2, priorityClassName="high")
    cluster.model.gangs.put_group(group, GangFamily.VOLCANO)
    keys = {"scheduling.k8s.io/group-name": "g"}
    cluster.put(*running_pods(2, annotations=keys))
    cluster.put(kube_pod("w", gpu=1, priority=5))
    assert cluster.plan() == []
    cluster.put(kube_pod("w", gpu=1, priority=10))
    (call,) = cluster.plan()
    assert isinstance(call, Preempt)
    assert len(call.victims) == 2
    assert cluster.model.gangs.gangs["volcano:default/g"].priority == 9


def test_a_gang_is_evicted_as_its_most_important_member() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    labels = ack("victim", min_available="2")
    for n, priority in enumerate((1, 20)):
        cluster.put(kube_pod(f"v{n}", gpu=1, node="n0", labels=labels, priority=priority))
    cluster.put(kube_pod("w", gpu=2, priority=10))
    assert cluster.plan() == []
    cluster.put(kube_pod("w", gpu=2, priority=21))
    assert len(cluster.plan()) == 1


def test_gangs_of_equal_priority_are_ordered_by_creation_and_name() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    late = "2026-01-01T00:00:01Z"
    cluster.put(kube_pod("a", gpu=2, created=late))
    cluster.put(*(kube_pod(name, gpu=2, uid=uid) for name, uid in (("c", "1"), ("b", "2"))))
    assert cluster.bound() == ["b"]
    cluster.model.put_node(kube_node("n9", gpu=2))
    assert cluster.bound() == ["c"]


# Binds, evictions, reports


def test_binds_carry_their_round() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    cluster.model.gangs.put_group(kube_pod_group(minMember=2), GangFamily.POD_GROUP)
    cluster.put(*members(3, labels={X_GROUP: "g"}))
    (call,) = cluster.plan()
    assert isinstance(call, BindGang)
    assert call.round == BindRound("r1", 2, 3)
    assert cluster.plan() == [], "binds that were sent are not sent again"
    stale = next(members(1, labels={X_GROUP: "g"}))
    cluster.put(stale)
    assert cluster.plan() == [], "an older version of the pod changes nothing"


def bound_in(round_: str, name: str, **fields: Any) -> KubePod:
    at = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"}
    return kube_pod(
        name,
        gpu=1,
        node="n0",
        annotations={ROUND: round_},
        status={"conditions": [at]},
        **fields,
    )


def test_a_round_that_stopped_half_way_is_served_first() -> None:
    """After a restart: two of four pods are bound. The match policy would count only pending ones,
    and another gang of a higher priority asks for the rest of the cluster."""
    cluster = Cluster(nodes=1, gpu=4)
    labels = ack(min_available="4")
    cluster.put(*(bound_in("x/4/4", f"w{n}", labels=labels) for n in range(2)))
    cluster.put(*members(2, 2, labels=labels))
    cluster.put(kube_pod("other", gpu=2, priority=1000))
    assert cluster.bound() == ["w2", "w3"]


def test_a_gang_that_lost_members_is_not_taken_for_half_bound() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    labels = ack(min_available="4")
    cluster.put(*(bound_in("x/4/4", f"w{n}", labels=labels) for n in range(2)))
    late = "2026-01-01T11:00:00Z"
    cluster.put(*members(2, 2, labels=labels, created=late))
    assert cluster.bound() == []
    reason = str(cluster.reason("pod-group:default/g"))
    excluded = "the match policy excludes the 2 running or done"
    assert reason == f"only 2 of 4 members are pending, {excluded}"


def running_pods(size: int, **fields: Any) -> list[KubePod]:
    return [kube_pod(f"v{n}", gpu=1, node="n0", phase="Running", **fields) for n in range(size)]


def test_a_more_important_gang_evicts_a_whole_gang() -> None:
    cluster = Cluster(nodes=1, gpu=4)
    cluster.put(*running_pods(4, labels=ack("victim", min_available="4")))
    cluster.put(*members(2, labels=ack(min_available="2"), priority=10))
    (call,) = cluster.plan()
    assert isinstance(call, Preempt)
    assert call.preemptor == "default/g"
    assert {each.pod.name for each in call.nominations} == {"w0", "w1"}
    assert {each.pod.name for each in call.victims} == {"v0", "v1", "v2", "v3"}
    assert {each.preemptor for each in call.victims} == {"default/g"}
    victims = "4 preempted pods of gang default/victim"
    named = "default/v0, default/v1, default/v2 and 1 more"
    message = f"gang default/g: starts when {victims} have stopped: {named}"
    assert {(each.kind, each.message) for each in cluster.reports} == {
        ("WaitingForVictims", message)
    }


def test_a_nominated_gang_waits_for_its_victims_and_keeps_its_nodes() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    marks = {"phalanx.dev/preempted-by": "default/g"}
    leaving = running_pods(2, annotations=marks, terminating=True)
    cluster.put(*leaving)
    waiting: dict[str, Any] = {"labels": ack(min_available="2"), "priority": 10}
    cluster.put(*members(2, status={"nominatedNodeName": "n0"}, **waiting))
    cluster.put(kube_pod("other", gpu=1))
    assert cluster.plan() == []
    assert "starts when 2 preempted pods have stopped: default/v0, default/v1" in str(
        [report.message for report in cluster.reports]
    )
    cluster.model.remove_pod("uid-default-v0")
    assert cluster.plan() == [], "the first place that becomes free is kept"
    cluster.model.remove_pod("uid-default-v1")
    assert cluster.bound() == ["w0", "w1"]


def test_nominations_are_cleared_when_the_victims_are_gone_and_others_took_their_nodes() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    taken = running_pods(2, scheduler="other")
    cluster.put(*taken)
    waiting: dict[str, Any] = {"labels": ack(min_available="2"), "priority": 10}
    cluster.put(*members(2, status={"nominatedNodeName": "n0"}, **waiting))
    cluster.put(kube_pod("plain", gpu=2))
    cluster.model.refresh()
    made = plan(cluster.model.state, NOW_MICROS)
    (cleared,) = cleared_nominations(made, cluster.model)
    assert [pod.name for pod in cleared.pods] == ["w0", "w1"]


def test_a_victim_leaves_for_its_host_port() -> None:
    """Enough is free: only the port is taken."""
    cluster = Cluster(nodes=1)
    ports = [{"name": "c", "ports": [{"hostPort": 80}]}]
    cluster.put(kube_pod("v0", node="n0", phase="Running", containers=ports))
    cluster.put(kube_pod("w", containers=ports, priority=10))
    (call,) = cluster.plan()
    assert isinstance(call, Preempt)
    assert [each.pod.name for each in call.victims] == ["v0"]


def test_a_gang_is_spread_evenly_over_zones() -> None:
    cluster = Cluster(nodes=0)
    for n, zone in enumerate("aab"):
        cluster.model.put_node(kube_node(f"z{n}", gpu=8, labels={"zone": zone}))
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
    labels = {"a": "b"} | ack(min_available="6")
    cluster.put(*members(6, labels=labels, topologySpreadConstraints=[constraint]))
    (call,) = cluster.plan()
    assert isinstance(call, BindGang)
    assert sorted(zone_of(cluster, bind.node) for bind in call.binds) == [*"aaabbb"]


def budget(name: str, allowed: int, **labels: str) -> PodDisruptionBudget:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed},
        },
        PodDisruptionBudget,
    )


def preempting(*budgets: PodDisruptionBudget, **fields: Any) -> list[Call]:
    cluster = Cluster(nodes=1, gpu=2)
    for each in budgets:
        cluster.model.put_budget(each)
    labels = ack("victim", min_available="2") | {"app": "web", "tier": "x"}
    cluster.put(*running_pods(2, labels=labels, **fields))
    cluster.put(kube_pod("w", gpu=2, priority=10))
    return cluster.plan()


@pytest.mark.parametrize(
    ("budgets", "evicts"),
    [
        ([], True),
        ([budget("b", 2, app="web")], True),
        ([budget("b", 1, app="web")], False),
        ([budget("b", 2, app="web"), budget("c", 2, tier="x")], False),
        ([budget("b", 0, app="other")], True),
    ],
)
def test_budgets_allow_the_victims_as_a_whole_or_not_at_all(
    budgets: list[PodDisruptionBudget], *, evicts: bool
) -> None:
    assert bool(preempting(*budgets)) == evicts


def test_critical_pods_and_pods_of_other_schedulers_are_never_evicted() -> None:
    assert preempting(priority=2_000_000_000) == []
    assert preempting(scheduler="default-scheduler") == []
    assert preempting(priority=9) != []


def test_a_pod_that_never_preempts_waits() -> None:
    cluster = Cluster(nodes=1, gpu=1)
    cluster.put(*running_pods(1))
    cluster.put(kube_pod("w", gpu=1, priority=10, preemptionPolicy="Never"))
    assert cluster.plan() == []


def test_rules_between_pods_hold_within_a_gang_and_against_others() -> None:
    cluster = Cluster(nodes=3)
    labelled = {"labelSelector": {"matchLabels": {"a": "b"}}}
    selector = {"topologyKey": "kubernetes.io/hostname", **labelled}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}
    cluster.put(kube_pod("there", node="n0", labels={"a": "b"}, scheduler="other"))
    labels = {"a": "b"} | ack(min_available="2")
    cluster.put(*members(2, labels=labels, affinity=apart))
    (call,) = cluster.plan()
    assert isinstance(call, BindGang)
    assert {bind.node for bind in call.binds} == {"n1", "n2"}
    cluster.put(kube_pod("late", labels={"a": "b"}))
    (call,) = cluster.plan()
    assert isinstance(call, BindGang)
    assert [bind.node for bind in call.binds] == ["n0"]


def test_a_gang_that_wants_to_be_in_one_zone_finds_one_that_is_large_enough() -> None:
    cluster = Cluster(nodes=0)
    for n, zone in enumerate("aab"):
        gpus = 2 if zone == "b" else 1
        cluster.model.put_node(kube_node(f"z{n}", gpu=gpus, labels={"zone": zone}))
    selector = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}
    cluster.put(*members(2, gpu=1, labels={"a": "b"} | ack(min_available="2"), affinity=near))
    (call,) = cluster.plan()
    assert isinstance(call, BindGang)
    assert len({zone_of(cluster, bind.node) for bind in call.binds}) == 1


def zone_of(cluster: Cluster, node: str) -> str:
    return cluster.model.nodes[node].metadata.labels["zone"]


def test_unsupported_parts_are_reported_and_never_guessed() -> None:
    cluster = Cluster()
    cluster.put(kube_pod("w", resourceClaims=[{"name": "gpu"}]))
    assert cluster.plan() == []
    assert cluster.reports == [
        PodReport(
            cluster.reports[0].pod,
            "NotSupported",
            "pod w uses spec.resourceClaims (dynamic resource allocation): not supported; remove"
            " it, or leave the pod to another scheduler",
            "pod:uid-default-w",
        )
    ]


def test_a_changed_gang_is_decided_again() -> None:
    cluster = Cluster()
    cluster.put(kube_pod("w", gpu=1))
    cluster.model.refresh()
    made = plan(cluster.model.state, NOW_MICROS)
    cluster.put(kube_pod("w", gpu=2))
    cluster.model.refresh()
    assert list(calls_of(made, cluster.model, lambda: "r")) == []


def test_a_node_that_leaves_takes_its_pods_out_of_the_plan() -> None:
    cluster = Cluster(nodes=2, gpu=1)
    cluster.put(kube_pod("a", gpu=1, node="n0"), kube_pod("b", gpu=1, node="n1"))
    cluster.put(kube_pod("w", gpu=1))
    assert cluster.bound() == []
    cluster.model.remove_node("n0")
    assert cluster.bound() == []
    cluster.model.put_node(kube_node("n0", gpu=2))
    assert cluster.bound() == ["w"]


@pytest.mark.parametrize("has_controller", [True, False])
def test_a_half_bound_gang_is_evicted_after_its_timeout_if_its_pods_are_replaced(
    *, has_controller: bool
) -> None:
    cluster = Cluster(nodes=1, gpu=2)
    owners = [{"kind": "Job", "name": "j", "uid": "u", "controller": True}]
    labels = ack(min_available="4")
    bound = [bound_in("x/4/4", f"w{n}", labels=labels) for n in range(2)]
    if has_controller:
        owned = {"labels": labels, "owners": owners}
        bound = [bound_in("x/4/4", f"w{n}", **owned) for n in range(2)]
    cluster.put(*bound, *members(2, 2, labels=labels))
    cluster.model.refresh()
    minute, began = timedelta(seconds=60), datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert not list(timed_out_rounds(cluster.model, began + minute / 2, minute))
    (call,) = timed_out_rounds(cluster.model, began + minute, minute)
    assert len(call.evicted) == (2 if has_controller else 0)
    assert len(call.kept) == (0 if has_controller else 2)


def test_a_pod_group_of_volcano_without_pods_is_admitted_within_the_limit_of_its_queue() -> None:
    cluster = Cluster()
    cluster.model.put_queue(queue("small", capability={"cpu": "4"}), is_volcano=True)

    def group(name: str, cpu: str, **fields: Any) -> None:
        given = kube_pod_group(name, minMember=1, queue="small", minResources={"cpu": cpu})
        cluster.model.gangs.put_group(msgspec.structs.replace(given, **fields), GangFamily.VOLCANO)

    group("fits", "4")
    group("large", "5")
    group("running", "1", status=PodGroupStatus(phase="Running"))
    answers = {each.name: each for each in group_admissions(cluster.model)}
    assert isinstance(answers.pop("fits"), AdmitGroup)
    assert {name: each[3:] for name, each in answers.items()} == {
        "large": (
            "QueueLimit",
            (
                "never fits: the gang needs 5 CPUs, the limit of queue small is 4; raise the limit,"
                " request less, or choose another queue"
            ),
        )
    }


def test_only_the_selected_nodes_are_used() -> None:
    model = ClusterModel(nodes=query_of(LabelSelector({"team": "ml"})))
    model.put_node(kube_node("a"))
    model.put_node(kube_node("b", labels={"team": "ml"}))
    model.put_node(kube_node("c", labels={"team": "ml", "phalanx.dev/fleet": "operator"}))
    model.refresh()
    assert set(model.state.table.index) == {"b"}
    model.put_node(kube_node("b"))
    model.refresh()
    assert not model.state.table.index


def test_a_bind_by_another_scheduler_is_noticed() -> None:
    pending, bound = kube_pod("w"), kube_pod("w", node="n0")
    assert is_foreign_bind(pending, bound)
    assert not is_foreign_bind(pending, bound_in("x/1/1", "w"))
    assert not is_foreign_bind(bound, bound)


def test_a_pod_group_is_created_for_a_gang_of_labels_and_deleted_with_its_last_pod() -> None:
    cluster = Cluster()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}
    owners = [{**owner, "controller": True}]
    cluster.put(*members(2, labels=ack(min_available="2"), owners=owners))
    cluster.put(
        kube_pod("alone"), kube_pod("odd", annotations=koordinator("A B", min_available="1"))
    )
    cluster.model.refresh()
    gangs = cluster.model.gangs
    (create,) = output_changes(cluster.model)
    assert isinstance(create, CreateGroup)
    assert create.body["metadata"]["ownerReferences"] == [owner]
    assert create.body["spec"] == {"minMember": 2}
    labels = create.body["metadata"]["labels"]
    gangs.put_group(kube_pod_group(minMember=9, labels=labels), GangFamily.POD_GROUP)
    assert list(output_changes(cluster.model)) == []
    assert cluster.bound() == ["alone", "odd", "w0", "w1"], "nothing is read from the output"
    for n in range(2):
        cluster.model.remove_pod(f"uid-default-w{n}")
    cluster.model.refresh()
    deletion = DeleteGroup("default", "g", "uid-group-default-g")
    assert list(output_changes(cluster.model)) == [deletion]


def test_a_pod_above_the_minimum_of_a_running_gang_says_why_it_is_pending() -> None:
    cluster = Cluster(nodes=1, gpu=2)
    labels = ack(min_available="2", match_policy="waiting-and-running")
    cluster.put(*[bound_in("x/2/2", f"w{n}", labels=labels) for n in range(2)])
    cluster.put(*members(1, 2, labels=labels))
    assert cluster.plan() == []
    (report,) = cluster.reports
    assert (report.pod.name, report.kind) == ("w2", "Unschedulable")
    assert "GPUs" in report.message


def test_a_budget_holds_for_all_victims_of_a_preemptor_together() -> None:
    """Three gangs of one pod share a budget that lets one go. Two of them do not: two others do."""
    cluster = Cluster(nodes=1, gpu=5)
    cluster.model.put_budget(budget("b", 1, app="web"))
    for n in range(5):
        labels = ack(f"v{n}", min_available="1") | ({"app": "web"} if n < 3 else {})
        cluster.put(kube_pod(f"v{n}", gpu=1, node="n0", labels=labels, priority=n // 3))
    cluster.put(kube_pod("w", gpu=3, priority=10))
    (call,) = cluster.plan()
    assert isinstance(call, Preempt)
    names = {each.pod.name for each in call.victims}
    assert len(names & {"v0", "v1", "v2"}) == 1
    assert {"v3", "v4"} <= names
    cluster.put(kube_pod("w", gpu=4, priority=10))
    assert cluster.plan() == []


def preferring(kind: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    """An affinity that prefers pods with the label a=b near, or far."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"a": "b"}}}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def nodes_of(calls: list[Call]) -> list[str]:
    binds = [bind for call in calls if isinstance(call, BindGang) for bind in call.binds]
    return sorted(bind.node for bind in binds)


def test_pods_that_prefer_to_be_apart_are_spread_where_there_is_room() -> None:
    """Best fit would put all of them on one node."""
    cluster = Cluster(nodes=3, gpu=8)
    labels = {"a": "b"} | ack(min_available="3")
    cluster.put(*members(3, labels=labels, affinity=preferring("podAntiAffinity")))
    assert nodes_of(cluster.plan()) == ["n0", "n1", "n2"]
    tight = Cluster(nodes=1, gpu=8)
    tight.put(*members(3, labels=labels, affinity=preferring("podAntiAffinity")))
    assert nodes_of(tight.plan()) == ["n0", "n0", "n0"]


def test_a_pod_prefers_the_nodes_of_pods_that_it_likes_or_that_like_it() -> None:
    cluster = Cluster(nodes=3, gpu=8)
    cluster.put(kube_pod("full", gpu=7, node="n2"))
    cluster.put(kube_pod("liked", node="n1", labels={"a": "b"}))
    cluster.put(kube_pod("w", gpu=1, affinity=preferring("podAffinity")))
    assert nodes_of(cluster.plan()) == ["n1"], "best fit would choose n2"
    other = Cluster(nodes=2, gpu=8)
    other.put(kube_pod("dislikes", gpu=7, node="n1", affinity=preferring("podAntiAffinity")))
    other.put(kube_pod("w", gpu=1, labels={"a": "b"}))
    assert nodes_of(other.plan()) == ["n0"], "best fit would choose n1"


def test_a_spread_that_may_be_violated_is_a_preference() -> None:
    cluster = Cluster(nodes=0)
    for n, zone in enumerate("ab"):
        cluster.model.put_node(kube_node(f"z{n}", gpu=4, labels={"zone": zone}))
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
    cluster.put(kube_pod("there", gpu=2, node="z0", labels={"a": "b"}))
    labels = {"a": "b"} | ack(min_available="5")
    cluster.put(*members(5, labels=labels, topologySpreadConstraints=[constraint]))
    assert nodes_of(cluster.plan()) == ["z0", "z0", "z1", "z1", "z1"]
