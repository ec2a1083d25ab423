"""Which nodes a pod may use and prefers, as far as the node alone decides."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.kube_objects import kube_node, kube_pod

from phalanx.kube.objects.cluster import PersistentVolume, PersistentVolumeClaim, StorageClass
from phalanx.kube.rules.node_predicate import PodNodes, pod_nodes, pod_preference, unsupported_part
from phalanx.kube.rules.taints import taints_of
from phalanx.kube.rules.volumes import PodVolumes, VolumeIndex
from phalanx.plan.model import NodeFacts


def facts(name: str = "n", **fields: Any) -> NodeFacts:
    node = kube_node(name, **fields)
    return NodeFacts(name, node.metadata.labels, taints_of(node))


def may_use(node: NodeFacts, **spec: Any) -> bool:
    return pod_nodes(kube_pod(**spec), PodVolumes()).matches(node)


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    selector = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def expression(operator: str, *values: str, key: str = "size") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ["1", "2"], {"size": "2"}, True),
        ("In", ["1"], {}, False),
        ("NotIn", ["1"], {"size": "1"}, False),
        ("NotIn", ["1"], {}, True),
        ("Exists", [], {"size": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"size": "1"}, False),
        ("Gt", ["9"], {"size": "10"}, True),
        ("Gt", ["10"], {"size": "10"}, False),
        ("Gt", ["9"], {"size": "ten"}, False),
        ("Gt", ["9"], {}, False),
        ("Lt", ["9"], {"size": "-3"}, True),
        ("Lt", ["9"], {"size": "99999999999999999999"}, False),
        ("Near", ["9"], {"size": "9"}, False),
    ],
)
def test_node_affinity_has_all_operators(
    operator: str, values: list[str], labels: dict[str, str], *, expected: bool
) -> None:
    affinity = required({"matchExpressions": [expression(operator, *values)]})
    assert may_use(facts(labels=labels), affinity=affinity) == expected


def test_one_term_is_enough_and_all_of_its_requirements_must_hold() -> None:
    one = {"matchExpressions": [expression("In", "1"), expression("Exists", key="disk")]}
    other = {"matchFields": [expression("In", "n2", key="metadata.name")]}
    affinity = required(one, other)
    assert may_use(facts(labels={"size": "1", "disk": "x"}), affinity=affinity)
    assert not may_use(facts(labels={"size": "1"}), affinity=affinity)
    assert may_use(facts("n2"), affinity=affinity)


def test_an_empty_term_and_an_empty_list_of_terms_match_no_node() -> None:
    assert not may_use(facts(), affinity=required({}))
    assert not may_use(facts(), affinity=required())
    assert may_use(facts(), affinity={"nodeAffinity": {}})


def test_the_node_selector_holds_besides_the_affinity() -> None:
    affinity = required({"matchExpressions": [expression("Exists")]})
    spec = {"nodeSelector": {"zone": "a"}, "affinity": affinity}
    assert may_use(facts(labels={"zone": "a", "size": "1"}), **spec)
    assert not may_use(facts(labels={"zone": "b", "size": "1"}), **spec)
    assert not may_use(facts(labels={"zone": "a"}), **spec)


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "a100"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "h100"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Sometimes"}, False),
    ],
)
def test_a_taint_is_tolerated_by_key_value_and_effect(
    toleration: dict[str, str], *, expected: bool
) -> None:
    node = facts(taints=[{"key": "gpu", "value": "a100", "effect": "NoSchedule"}])
    assert may_use(node, tolerations=[toleration]) == expected
    assert not may_use(node)


def test_a_cordon_can_be_tolerated() -> None:
    node = facts(unschedulable=True)
    key = "node.kubernetes.io/unschedulable"
    assert not may_use(node)
    assert may_use(node, tolerations=[{"key": key, "operator": "Exists"}])


def test_equal_pods_have_one_predicate_and_the_rest_of_the_pod_does_not_matter() -> None:
    tolerations = [{"key": "a", "operator": "Exists"}, {"key": "b", "tolerationSeconds": 300}]
    one = pod_nodes(kube_pod("a", cpu=1, tolerations=tolerations), PodVolumes())
    tolerations = [{"key": "b", "tolerationSeconds": 9}, tolerations[0]]
    other = pod_nodes(kube_pod("b", cpu=2, tolerations=tolerations), PodVolumes())
    assert one == other
    assert len({one, other}) == 1
    assert one.conditions == 0


def test_the_reason_names_what_no_node_satisfies() -> None:
    affinity = required({"matchExpressions": [expression("Exists")]})
    pod = kube_pod(nodeSelector={"zone": "a"}, affinity=affinity)
    reason = pod_nodes(pod, PodVolumes()).unmatched({})
    wanted = "nodeSelector zone=a, the required node affinity, its tolerations"
    assert str(reason) == f"no node satisfies {wanted}"


def test_preferred_nodes_have_a_smaller_penalty() -> None:
    terms = [
        {"weight": 30, "preference": {"matchExpressions": [expression("In", "1")]}},
        {"weight": 10, "preference": {"matchExpressions": [expression("Exists", key="disk")]}},
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    preference = pod_preference(kube_pod(affinity=affinity), has_avoided_taints=False)
    assert preference is not None
    labels: list[dict[str, str]] = [{"size": "1", "disk": "x"}, {"size": "1"}, {"disk": "x"}, {}]
    penalties = [preference.penalty(facts(labels=each)) for each in labels]
    assert penalties == sorted(penalties)
    assert penalties[0] == 0
    assert len(set(penalties)) == 4
    tainted = facts(labels=labels[0], taints=[{"key": "x", "effect": "PreferNoSchedule"}])
    assert 0 < preference.penalty(tainted) <= 1


def test_a_pod_without_preferences_has_none_unless_nodes_are_to_be_avoided() -> None:
    assert pod_preference(kube_pod(), has_avoided_taints=False) is None
    preference = pod_preference(kube_pod(), has_avoided_taints=True)
    assert preference is not None
    assert preference.penalty(facts()) == 0
    assert preference.penalty(facts(taints=[{"key": "x", "effect": "PreferNoSchedule"}])) > 0


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"workloadRef": {"name": "w"}}, "spec.workloadRef"),
        (
            {"containers": [{"resources": {"requests": {"aliyun.com/gpu-mem": "4"}}}]},
            "resource aliyun.com/gpu-mem",
        ),
        ({}, None),
    ],
)
def test_unsupported_parts_are_named(spec: dict[str, Any], part: str | None) -> None:
    named = unsupported_part(kube_pod(**spec))
    assert (named or "").startswith(part or "")
    assert (named is None) == (part is None)


# Volumes


def claim(name: str = "data", volume: str = "pv", **fields: Any) -> PersistentVolumeClaim:
    spec = {"volumeName": volume, "accessModes": ["ReadWriteOnce"], **fields.pop("spec", {})}
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    metadata = {"name": name, "namespace": "default", "annotations": bound, **fields}
    return msgspec.convert({"metadata": metadata, "spec": spec}, PersistentVolumeClaim)


def volume(*terms: dict[str, Any], **labels: str) -> PersistentVolume:
    spec: dict[str, Any] = {"csi": {"driver": "disk.example.com", "volumeHandle": "h1"}}
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": list(terms)}}
    named = {f"topology.kubernetes.io/{key}": value for key, value in labels.items()}
    return msgspec.convert(
        {"metadata": {"name": "pv", "labels": named}, "spec": spec}, PersistentVolume
    )


def volumes_of(
    *claims: PersistentVolumeClaim, volume: PersistentVolume | None = None, mode: str = "Immediate"
) -> PodVolumes:
    storage = msgspec.convert(
        {"metadata": {"name": "fast"}, "volumeBindingMode": mode}, StorageClass
    )
    index = VolumeIndex(
        {each.metadata.key: each for each in claims},
        {} if volume is None else {"pv": volume},
        {"fast": storage},
    )
    pod = kube_pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    return index.of(pod)


def test_a_volume_restricts_the_nodes_of_its_pod() -> None:
    term = {"matchExpressions": [expression("In", "a", key="rack")]}
    nodes = pod_nodes(kube_pod(), volumes_of(claim(), volume=volume(term)))
    assert nodes.matches(facts(labels={"rack": "a"}))
    assert not nodes.matches(facts(labels={"rack": "b"}))


def test_the_affinity_of_a_volume_ignores_fields_as_kubernetes_does() -> None:
    named = {"matchFields": [expression("In", "elsewhere", key="metadata.name")]}
    nodes = pod_nodes(kube_pod(), volumes_of(claim(), volume=volume(named)))
    assert nodes.matches(facts())
    assert not pod_nodes(kube_pod(), volumes_of(claim(), volume=volume({}))).matches(facts())


def test_the_zone_of_a_volume_does_not_exclude_nodes_without_zones() -> None:
    nodes = pod_nodes(kube_pod(), volumes_of(claim(), volume=volume(zone="a__b")))
    key, older = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
    assert nodes.matches(facts(labels={key: "b"}))
    assert not nodes.matches(facts(labels={key: "c"}))
    assert not nodes.matches(facts(labels={older: "c"}))
    assert nodes.matches(facts())
    assert nodes != PodNodes()


@pytest.mark.parametrize(
    ("volumes", "text"),
    [
        (volumes_of(), "claim data does not exist"),
        (volumes_of(claim()), "persistent volume pv does not exist"),
        (volumes_of(claim(volume="")), "claim data is not bound to a volume yet"),
        (volumes_of(claim(annotations={})), "claim data is not bound to a volume yet"),
        (
            volumes_of(claim(deletionTimestamp=datetime(2026, 1, 1, tzinfo=UTC))),
            "claim data is being deleted",
        ),
    ],
)
def test_a_claim_that_cannot_be_used_keeps_its_pod_pending(volumes: PodVolumes, text: str) -> None:
    assert volumes.obstacle == text
    assert volumes.is_supported


def test_a_claim_that_waits_for_its_pod_is_not_supported() -> None:
    waiting = claim(volume="", spec={"volumeName": "", "storageClassName": "fast"})
    volumes = volumes_of(waiting, mode="WaitForFirstConsumer")
    assert not volumes.is_supported
    assert "waits for the pod to be placed" in (volumes.obstacle or "")


def test_a_claim_for_one_pod_and_the_attached_volumes_are_known() -> None:
    alone = claim(spec={"accessModes": ["ReadWriteOncePod"]})
    volumes = volumes_of(alone, volume=volume())
    assert volumes.exclusive == ("default/data",)
    assert [tuple(each) for each in volumes.attached] == [("disk.example.com", "h1")]
