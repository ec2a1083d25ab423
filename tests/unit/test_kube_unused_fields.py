"""Fields and keys of every dialect that Phalanx does not honour: none is ignored in silence."""

from typing import Any

import msgspec
import pytest
from tests.kube_objects import kube_pod, kube_pod_group
from tests.unit.test_kube_gangs import Cluster, ack, members, queue

from phalanx.kube.gangs.gang_terms import group_declaration, pod_declaration
from phalanx.kube.model.queues import cluster_queue
from phalanx.kube.objects.gang import KubeQueue
from phalanx.manifest.gang_keys import GangFamily

NATIVE, POD_GROUP, VOLCANO = GangFamily.NATIVE, GangFamily.POD_GROUP, GangFamily.VOLCANO
POLICY: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": 1}}}
KEYS: dict[GangFamily, dict[str, Any]] = {
    NATIVE: {"schedulingGroup": {"podGroupName": "g"}},
    POD_GROUP: {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
    VOLCANO: {"annotations": {"scheduling.k8s.io/group-name": "g"}},
}


def report_of(cluster: Cluster) -> tuple[str, str]:
    assert cluster.plan() == []
    [report] = cluster.reports
    return report.kind, report.message


@pytest.mark.parametrize(
    ("family", "spec", "field"),
    [
        (VOLCANO, {"minMember": 1, "networkTopology": {"mode": "hard"}}, "networkTopology"),
        (VOLCANO, {"minMember": 1, "networkTopology": {"highestTierAllowed": 2}}, "networkTopo"),
        (VOLCANO, {"minMember": 1, "subGroupPolicy": [{"name": "a"}]}, "subGroupPolicy"),
        (NATIVE, {**POLICY, "resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
        (
            NATIVE,
            {**POLICY, "schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            "schedulingConstraints.topology[1] is a second topology",
        ),
        (POD_GROUP, {"minMember": 1, "minMembers": 2}, "minMembers"),
    ],
)
def test_a_gang_with_a_field_that_is_not_supported_stays_pending(
    family: GangFamily, spec: dict[str, Any], field: str
) -> None:
    cluster = Cluster(nodes=1)
    cluster.model.gangs.put_group(kube_pod_group(**spec), family)
    cluster.put(kube_pod("w", **KEYS[family]))
    kind, message = report_of(cluster)
    assert kind == "NotSupported"
    assert message.startswith(f"gang default/g: PodGroup default/g: spec.{field}")
    assert message.endswith("; remove it, or leave the gang to another scheduler")


def test_a_soft_topology_is_a_note_and_the_gang_starts() -> None:
    cluster = Cluster(nodes=1)
    spec: dict[str, Any] = {"minMember": 1, "networkTopology": {"mode": "soft"}}
    cluster.model.gangs.put_group(kube_pod_group(**spec), VOLCANO)
    cluster.put(kube_pod("w", **KEYS[VOLCANO]))
    assert cluster.bound() == ["w"]
    assert cluster.model.gangs.noted == {"volcano:default/g"}
    [gang] = cluster.model.gangs.gangs.values()
    [note] = gang.terms.notes
    assert note.startswith("PodGroup default/g: spec.networkTopology is soft, and not used")


def test_a_misspelt_key_of_a_gang_is_named() -> None:
    cluster = Cluster(nodes=1)
    key = "pod-group.scheduling.sigs.k8s.io/min-avialable"
    cluster.put(*members(1, labels=ack(min_available="1") | {key: "2"}))
    kind, message = report_of(cluster)
    assert kind == "NotSupported"
    right = "pod-group.scheduling.sigs.k8s.io/min-available"
    assert f'"{key}"] is not a key that declares a gang (did you mean {right}?);' in message


def test_keys_of_a_gang_without_a_name_are_named() -> None:
    cluster = Cluster(nodes=1)
    key = "pod-group.scheduling.sigs.k8s.io/min-available"
    cluster.put(kube_pod("w", labels={key: "2"}))
    assert report_of(cluster) == (
        "GangNotReady",
        (f"pod w has the key {key} and no key that names its gang; add one, or remove the key"),
    )


def test_values_that_are_read_differently_are_notes() -> None:
    prefix = "gang.scheduling.koordinator.sh/"
    annotations = {f"{prefix}name": "g", f"{prefix}min-available": "1", f"{prefix}mode": "Lazy"}
    declared = pod_declaration(kube_pod("w", annotations=annotations))
    assert declared is not None
    [note] = declared.notes
    assert note == f'pod default/w: metadata.annotations["{prefix}mode"] is "Lazy", read as Strict'
    both = {**annotations, "scheduling.k8s.io/group-name": "h"}
    del both[f"{prefix}mode"]
    declared = pod_declaration(kube_pod("w", annotations=both))
    assert declared is not None
    [note] = declared.notes
    assert note.endswith('group-name"] is not used: another key names the gang g')


def notes_of(**pod: Any) -> list[str]:
    """The notes about a pod that is bound although a key of it is not used."""
    cluster = Cluster(nodes=1)
    cluster.put(kube_pod("w", **pod))
    assert cluster.bound() == ["w"]
    [gang] = cluster.model.gangs.gangs.values()
    assert cluster.model.gangs.noted == ({gang.job} if gang.notes else set())
    return [note.removeprefix("pod default/w: metadata.") for note in gang.notes]


def test_keys_of_other_projects_that_have_no_effect_are_named() -> None:
    name = "name the queue with the label phalanx.dev/queue"
    queue = {"kueue.x-k8s.io/queue-name": "ml"}
    assert notes_of(labels=queue) == [f'labels["kueue.x-k8s.io/queue-name"] is not used; {name}']
    [note] = notes_of(annotations={"scheduling.koordinator.sh/reservation-affinity": "{}"})
    assert note.endswith(" is not used; remove it, or leave the pod to koord-scheduler")
    group = {"kueue.x-k8s.io/pod-group-name": "g"}
    [note] = notes_of(labels=group)
    assert "; declare the gang with the labels pod-group.scheduling.sigs.k8s.io/name and " in note


@pytest.mark.parametrize(
    "labels",
    [
        {"kueue.x-k8s.io/queue-name": "ml", "phalanx.dev/queue": "default"},
        {"kueue.x-k8s.io/queue-name": "ml", "kueue.x-k8s.io/managed": "true"},
        {"kueue.x-k8s.io/pod-group-name": "g", **ack(min_available="1")},
        {"app.kubernetes.io/name": "w", "volcano.sh/job-name": "j"},
    ],
)
def test_keys_of_other_projects_that_nothing_depends_on_are_not_named(
    labels: dict[str, str],
) -> None:
    assert notes_of(labels=labels) == []


def test_the_name_of_a_pod_group_of_volcano_can_be_a_label() -> None:
    declared = pod_declaration(kube_pod("w", labels={"scheduling.k8s.io/group-name": "g"}))
    assert declared is not None
    assert (declared.key.family, declared.key.name) == (VOLCANO, "g")


def test_a_priority_class_that_does_not_exist_is_named() -> None:
    cluster = Cluster(nodes=1)
    group = kube_pod_group(minMember=1, priorityClassName="urgent")
    cluster.model.gangs.put_group(group, VOLCANO)
    cluster.put(kube_pod("w", **KEYS[VOLCANO]))
    assert report_of(cluster) == (
        "GangNotReady",
        "gang default/g: PriorityClass urgent, which the PodGroup names, does not exist",
    )
    native = kube_pod_group(**POLICY, priority=7, priorityClassName="urgent")
    assert group_declaration(native, NATIVE).fields["priority_class"] == "urgent"


def test_fields_of_a_queue_of_volcano_that_have_no_effect_are_notes() -> None:
    given = queue("q", weight=1, guarantee={"resource": {"cpu": "1"}}, dequeueStrategy="fifo")
    read = cluster_queue(given, is_volcano=True)
    assert read.problem is None
    assert read.notes == (
        (
            "spec.guarantee is not supported; use deserved, which Phalanx serves first; it was"
            " ignored"
        ),
        "spec.dequeueStrategy is not supported; it was ignored",
    )


@pytest.mark.parametrize(("state", "is_stopped"), [("Open", False), ("Closed", True)])
def test_a_closed_queue_of_volcano_starts_no_gangs(state: str, is_stopped: bool) -> None:
    given: KubeQueue = msgspec.structs.replace(queue("q"), status={"state": state})
    assert cluster_queue(given, is_volcano=True).queue.stopped is is_stopped


def test_pods_that_volcano_protects_are_not_evicted() -> None:
    cluster = Cluster(nodes=1, gpu=1)
    keep = {"volcano.sh/preemptable": "false"}
    running: dict[str, Any] = {"gpu": 1, "node": "n0", "phase": "Running"}
    cluster.put(kube_pod("low", annotations=keep, **running))
    cluster.put(kube_pod("high", gpu=1, priority=10))
    assert cluster.plan() == []
    cluster.put(kube_pod("low", **running))
    assert len(cluster.plan()) == 1
