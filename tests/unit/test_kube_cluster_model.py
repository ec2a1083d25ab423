"""A model that follows the changes of a cluster equals one that is made of its last state."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kube_objects import kube_node, kube_pod, kube_pod_group

from phalanx.kube.gangs.gang_terms import GangKey
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.cluster import KubeNode
from phalanx.kube.objects.gang import KubePodGroup
from phalanx.kube.objects.pod import KubePod
from phalanx.manifest.gang_keys import GangFamily

NAMES = [f"p{n}" for n in range(6)]
NODES = ["n0", "n1", "n2"]
KOORDINATOR = "gang.scheduling.koordinator.sh/"

# Strategies are checked when they are first used, which takes longer than a draw.
APPS = st.sampled_from("xy")
GANGS = st.sampled_from([None, "g", "h"])
WAYS = st.sampled_from(["label", "koordinator", "volcano"])
GANG_GROUPS = st.sampled_from([list[str](), ["default/g"], ["default/h"]])
COUNTS = st.sampled_from("12")
AFFINITIES = st.sampled_from([None, None, "podAffinity", "podAntiAffinity"])
TOPOLOGY_KEYS = st.sampled_from(["kubernetes.io/hostname", "zone"])
NODES_OF_PODS = st.sampled_from([*NODES, "elsewhere"])
PHASES = st.sampled_from(["Running", "Succeeded", "Failed"])
TERMINATING = st.sampled_from([False, False, True])
POD_NAMES = st.sampled_from(NAMES)
TAINTS = st.sampled_from([list[dict[str, str]](), [{"key": "a", "effect": "PreferNoSchedule"}]])
ZONES = st.sampled_from("ab")
NODE_NAMES = st.sampled_from(NODES)


def terms(labels: dict[str, str], key: str) -> list[dict[str, Any]]:
    return [{"topologyKey": key, "labelSelector": {"matchLabels": labels}}]


@st.composite
def pods(draw: st.DrawFn) -> KubePod:
    fields: dict[str, Any] = {"labels": {"app": draw(APPS)}}
    gang = draw(GANGS)
    if gang is not None:
        way = draw(WAYS)
        if way == "label":
            fields["labels"]["scheduling.x-k8s.io/pod-group"] = gang
        elif way == "volcano":
            fields["annotations"] = {"scheduling.k8s.io/group-name": gang}
        else:
            groups = draw(GANG_GROUPS)
            fields["annotations"] = {
                f"{KOORDINATOR}name": gang,
                f"{KOORDINATOR}min-available": draw(COUNTS),
                f"{KOORDINATOR}groups": json.dumps(groups),
            }
    kind = draw(AFFINITIES)
    if kind is not None:
        key = draw(TOPOLOGY_KEYS)
        wanted = terms({"app": draw(APPS)}, key)
        required = {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
        fields["affinity"] = {kind: required}
    if draw(st.booleans()):
        fields["node"] = draw(NODES_OF_PODS)
        fields["phase"] = draw(PHASES)
    fields["terminating"] = draw(TERMINATING)
    name = draw(POD_NAMES)
    fields["scheduler"] = "other" if name == NAMES[-1] else "phalanx"
    return kube_pod(name, cpu=draw(st.integers(0, 2)), **fields)


@st.composite
def nodes(draw: st.DrawFn) -> KubeNode:
    taints = draw(TAINTS)
    labels = {"zone": draw(ZONES)}
    name = draw(NODE_NAMES)
    return kube_node(name, cpu=draw(st.integers(1, 4)), labels=labels, taints=taints)


GROUPS = st.builds(kube_pod_group, st.sampled_from("gh"), minMember=st.integers(1, 3))
FAMILIES = st.sampled_from([GangFamily.POD_GROUP, GangFamily.VOLCANO])
CHANGES = st.one_of(
    pods(),
    nodes(),
    st.tuples(GROUPS, FAMILIES),
    st.sampled_from([f"pod {name}" for name in NAMES]),
    st.sampled_from([f"node {name}" for name in NODES]),
    st.builds(
        lambda family, name: GangKey(family, "default", name), FAMILIES, st.sampled_from("gh")
    ),
    st.just("refresh"),
)
Change = KubePod | KubeNode | tuple[KubePodGroup, GangFamily] | GangKey | str


def _keys(pod: KubePod) -> tuple[dict[str, str], dict[str, str]]:
    return pod.metadata.labels, pod.metadata.annotations


class Objects:
    """The last version of every object."""

    def __init__(self) -> None:
        self.pods: dict[str, KubePod] = {}
        self.nodes: dict[str, KubeNode] = {}
        self.groups: dict[GangKey, tuple[KubePodGroup, GangFamily]] = {}

    def change(self, change: Change, model: ClusterModel) -> None:
        """Take over a change that an API server would allow, and pass it on."""
        match change:
            case KubePod():
                uid = change.metadata.uid
                before = self.pods.get(uid)
                if before is not None and before.spec.node_name:
                    change = replace(
                        change, spec=replace(change.spec, node_name=before.spec.node_name)
                    )
                if before is not None and _keys(before) != _keys(change):
                    # A bound pod stays in its gang, so a new key would not show here.
                    model.remove_pod(uid)
                self.pods[uid] = change
                model.put_pod(change)
            case KubeNode():
                self.nodes[change.metadata.name] = change
                model.put_node(change)
            case GangKey():
                self.groups.pop(change, None)
                model.gangs.remove_group(change)
            case "refresh":
                model.refresh()
            case str():
                kind, name = change.split()
                if kind == "pod":
                    self.pods.pop(f"uid-default-{name}", None)
                    model.remove_pod(f"uid-default-{name}")
                else:
                    self.nodes.pop(name, None)
                    model.remove_node(name)
            case group, family:
                key = GangKey(family, "default", group.metadata.name)
                self.groups[key] = (group, family)
                model.gangs.put_group(group, family)

    def fresh(self) -> ClusterModel:
        model = ClusterModel()
        for group, family in self.groups.values():
            model.gangs.put_group(group, family)
        for node in self.nodes.values():
            model.put_node(node)
        for pod in self.pods.values():
            model.put_pod(pod)
        return model


def seen(model: ClusterModel) -> dict[str, Any]:
    """Everything that a plan could notice, with pods by name instead of by number. That a gang has
    had its minimum is forgotten first: a new model cannot know it once the pods are gone."""
    for each in model.gangs.gangs.values():
        each.satisfied = False
        model.gangs.changed.add(each.job)
    model.refresh()
    state, table = model.state, model.state.table
    result: dict[str, Any] = {"nodes": sorted(table.index)}
    rows = sorted(table.rows)
    for name, at in table.index.items():
        result[f"free on {name}"] = {row: int(table.free[table.rows[row], at]) for row in rows}

    def name_of(job: str, number: int) -> str:
        return model.pod_name(f"{job.partition('#')[0]}.{number}")

    for gang in state.pending.gangs.values():
        roles = sorted(
            (role.request.resources, role.need, sorted(name_of(gang.job, n) for n in role.tasks))
            for role in gang.roles
        )
        result[f"pending {gang.name}"] = (roles, gang.need, str(gang.ineligible), gang.group)
        for role in gang.roles:
            restriction = state.at(0).present.restriction(role.request)
            allowed = None
            if restriction is not None and restriction.nodes is not None:
                allowed = sorted(n for n, at in table.index.items() if restriction.nodes[at])
            names = sorted(name_of(gang.job, n) for n in role.tasks)
            result[f"allowed {names}"] = allowed
    for occupancy in state.running.by_job.values():
        running = occupancy.gang
        result[f"running {running.job}"] = (
            sorted((name_of(running.job, task.index), task.node) for task in running.tasks),
            running.min_available,
            running.evictable,
        )
    result["overcommitted"], result["half bound"] = model.overcommitted, model.gangs.half_bound
    return result


@settings(deadline=None, max_examples=100)
@given(st.lists(CHANGES, max_size=25))
def test_a_model_that_follows_changes_equals_a_new_one(changes: list[Change]) -> None:
    objects, model = Objects(), ClusterModel()
    for change in changes:
        objects.change(change, model)
    assert seen(model) == seen(objects.fresh())


BOUND = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
#: What a kubelet reports, and what the scheduler writes to a pending pod.
REPORTED: list[dict[str, Any]] = [
    {"phase": "Running"},
    {"phase": "Running", "containerStatuses": [{"name": "main"}]},
    {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
]
CHANGED: list[dict[str, Any]] = [
    {"phase": "Failed"},
    {"terminating": True},
    {"node": "n"},
    {"labels": {"a": "b"}},
    {"annotations": {"phalanx.dev/preempted-by": "default/g"}},
    {"status": {"nominatedNodeName": "n"}},
    {"status": {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}},
    {"status": {"conditions": [BOUND]}},
    {"cpu": 2},
    {"priority": 7},
]


def model_with(pod: KubePod) -> ClusterModel:
    model = ClusterModel()
    model.put_node(kube_node("n"))
    model.put_pod(pod)
    model.refresh()
    return model


@pytest.mark.parametrize("status", REPORTED)
def test_a_version_that_plans_do_not_read_is_taken_over_without_a_translation(
    status: dict[str, Any],
) -> None:
    model = model_with(kube_pod("p", cpu=1))
    later = kube_pod("p", cpu=1, status=status)
    model.put_pod(later)
    assert not model.has_changed
    [gang] = model.gangs.gangs.values()
    assert [*gang.pods()] == [later]
    assert [*model.pods.pods.values()] == [later]


@pytest.mark.parametrize("fields", CHANGED)
def test_a_version_that_plans_read_is_translated(fields: dict[str, Any]) -> None:
    model = model_with(kube_pod("p", cpu=1))
    model.put_pod(kube_pod("p", **{"cpu": 1, **fields}))
    assert model.has_changed


def test_a_gang_is_planned_when_all_of_its_pods_exist_and_not_when_all_are_bound() -> None:
    model = ClusterModel()
    model.put_node(kube_node("n0"))
    keys = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "2"}
    for name, is_eligible in (("p0", False), ("p1", True)):
        model.put_pod(kube_pod(name, annotations=keys))
        model.refresh()
        assert model.has_eligible_gangs is is_eligible
    for name in ("p0", "p1"):
        model.put_pod(kube_pod(name, annotations=keys, node="n0"))
    model.refresh()
    assert not model.has_eligible_gangs
