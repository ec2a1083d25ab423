"""The examples that the documentation of Koordinator and of Alibaba Cloud prints, on a real API
server: as they are printed where it accepts them, else with the least change that it accepts."""

import json
from typing import Any

import pytest

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import NAMESPACES, PODS, Resource, pod_groups
from phalanx.kube.writes.rounds import ROUND
from tests.kubernetes.custom_resources import definition, install
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_gang_rules import KOORDINATOR
from tests.kubernetes.test_scheduler import ACK, GPU, bound, pending_reason, pods_of, scheduler

CURRENT = pod_groups("scheduling.x-k8s.io", "v1alpha1")
OLDER = pod_groups("scheduling.sigs.k8s.io", "v1alpha1")

#: The annotations of a gang, as printed but for the quotes around the number.
BASIC = {f"{KOORDINATOR}/name": "gang-a", f"{KOORDINATOR}/min-available": "5"}
#: Labels and annotations of Alibaba Cloud's three methods, and the size of the gang.
METHODS: list[tuple[dict[str, Any], int]] = [
    ({"labels": {f"{ACK}/name": "tf-smoke-gpu", f"{ACK}/min-available": "3"}}, 3),
    ({"labels": {f"{ACK}/name": "nginx"}}, 3),
    (
        {
            "annotations": {
                f"{KOORDINATOR}/name": "gang-example",
                f"{KOORDINATOR}/min-available": "2",
            }
        },
        2,
    ),
]


async def create_group(
    api: ApiClient, groups: Resource[Any], namespace: str, name: str, **fields: Any
) -> None:
    await install(api, definition(groups.group, "PodGroup", has_status=True))
    metadata = {"name": name, "annotations": fields.pop("annotations", {})}
    body = {"apiVersion": groups.api_version, "kind": "PodGroup", "metadata": metadata}
    await api.create(groups, {**body, "spec": fields}, namespace)


async def create_members(pool: Pool, names: list[str], **keys: Any) -> None:
    """Pods of one GPU of which the last one is created when the others wait."""
    for name in names[:-1]:
        await pool.create_pod(name, requests={GPU: "1"}, **keys)
    assert await pending_reason(pool, names[0], "gang") == "GangNotReady"
    await bound(pool)
    await pool.create_pod(names[-1], requests={GPU: "1"}, **keys)
    await bound(pool, *names)


async def test_koordinators_basic_gang_by_pod_group(pool: Pool) -> None:
    await pool.add_nodes(1, {GPU: "5"})
    resources = {"cpu": "5", "memory": "2048Mi"}
    spec = {"minMember": 5, "minResources": resources, "scheduleTimeoutSeconds": 600}
    await create_group(pool.api, OLDER, pool.namespace, "gang-a", **spec)
    async with scheduler(pool):
        label = {"pod-group.scheduling.sigs.k8s.io": "gang-a"}
        await create_members(pool, [f"a-{n}" for n in range(5)], labels=label)


async def test_koordinators_basic_gang_by_annotations(pool: Pool) -> None:
    await pool.add_nodes(1, {GPU: "5"})
    async with scheduler(pool):
        await create_members(pool, [f"a-{n}" for n in range(5)], annotations=BASIC)


@pytest.mark.parametrize("by_group", [True, False])
async def test_koordinators_roles_in_one_group_of_gangs(pool: Pool, *, by_group: bool) -> None:
    """Two gangs of two namespaces, declared by PodGroups or by annotations of their pods."""
    other = f"{pool.namespace}-b"
    await pool.api.create(NAMESPACES, {"metadata": {"name": other}})
    await pool.add_nodes(1, {GPU: "10", "cpu": "16"})
    groups = json.dumps([f"{pool.namespace}/gang-a", f"{other}/gang-b"])
    terms = {"total-number": "5", "mode": "Strict", "groups": groups}
    async with scheduler(pool):
        for namespace, name in ((pool.namespace, "gang-a"), (other, "gang-b")):
            labels: dict[str, str] = {}
            annotations = {f"{KOORDINATOR}/{key}": each for key, each in terms.items()}
            if by_group:
                labels = {"pod-group.scheduling.sigs.k8s.io": name}
                spec = {"minMember": 5, "scheduleTimeoutSeconds": 600}
                given = {"annotations": annotations, **spec}
                await create_group(pool.api, OLDER, namespace, name, **given)
                annotations = {}
            else:
                annotations |= {f"{KOORDINATOR}/name": name, f"{KOORDINATOR}/min-available": "5"}
                annotations |= {f"{KOORDINATOR}/waiting-time": "3600s"}
            for number in range(5):
                keys: dict[str, Any] = {"labels": labels, "annotations": annotations}
                body = pool.pod(f"{name}-{number}", requests={GPU: "1"}, **keys)
                await pool.api.create(PODS, body, namespace)
            if namespace == pool.namespace:
                assert await pending_reason(pool, "gang-a-0", "gang-b") == "GangNotReady"
        await bound(pool, *(f"gang-a-{n}" for n in range(5)))
        await bound(pool, *(f"gang-b-{n}" for n in range(5)), namespace=other)
    await pool.api.request("DELETE", PODS.path(other), params={"gracePeriodSeconds": 0})


async def test_koordinators_roles_in_different_groups_of_gangs(pool: Pool) -> None:
    """`groups` is empty: each gang starts alone."""
    await pool.add_nodes(1, {GPU: "5"})
    terms = {"waiting-time": "3600s", "total-number": "5", "mode": "Strict", "groups": ""}
    annotations = BASIC | {f"{KOORDINATOR}/{key}": each for key, each in terms.items()}
    async with scheduler(pool):
        await pool.create_pod("b", annotations=annotations | {f"{KOORDINATOR}/name": "gang-b"})
        names = [f"a-{n}" for n in range(5)]
        for name in names:
            await pool.create_pod(name, requests={GPU: "1"}, annotations=annotations)
        await bound(pool, *names)


@pytest.mark.parametrize(("keys", "size"), METHODS, ids=["labels", "pod-group", "annotations"])
async def test_alibabas_methods(pool: Pool, keys: dict[str, Any], size: int) -> None:
    await pool.add_nodes(1, {GPU: str(size)})
    if "nginx" in str(keys):
        spec = {"scheduleTimeoutSeconds": 10, "minMember": 3}
        await create_group(pool.api, CURRENT, pool.namespace, "nginx", **spec)
    async with scheduler(pool):
        await create_members(pool, [f"p-{n}" for n in range(size)], **keys)


async def test_alibabas_groups_and_match_policy(pool: Pool) -> None:
    """The API server refuses `groups` as a label, because of its characters; as an annotation it
    is read."""
    groups = json.dumps([f"{pool.namespace}/gang-example1", f"{pool.namespace}/gang-example2"])
    await pool.add_nodes(1)
    with pytest.raises(ApiStatusError) as refused:
        await pool.create_pod("refused", labels={f"{ACK}/groups": groups})
    assert refused.value.code == 422
    async with scheduler(pool):
        for name in ("gang-example1", "gang-example2"):
            labels = {f"{ACK}/name": name, f"{ACK}/min-available": "1"}
            labels[f"{ACK}/match-policy"] = "waiting-and-running"
            annotations = {f"{ACK}/groups": groups}
            await pool.create_pod(name, labels=labels, annotations=annotations)
            if name == "gang-example1":
                await pending_reason(pool, name, "gang-example2")
        await bound(pool, "gang-example1", "gang-example2")


async def test_alibabas_tensorflow_job(pool: Pool) -> None:
    """One parameter server and four workers of two GPUs each find four GPUs, then eight."""
    await pool.add_nodes(2, {GPU: "2"})
    keys = {"labels": {f"{ACK}/name": "tf-smoke-gpu", f"{ACK}/min-available": "5"}}
    names = ["tf-smoke-gpu-ps-0", *(f"tf-smoke-gpu-worker-{n}" for n in range(4))]
    async with scheduler(pool):
        await pool.create_pod(names[0], requests={"cpu": "1"}, **keys)
        for name in names[1:]:
            await pool.create_pod(name, requests={GPU: "2"}, **keys)
        for name in names:
            assert await pending_reason(pool, name, "needs 8 GPUs") == "Unschedulable"
        await bound(pool)
        await pool.add_nodes(2, {GPU: "2"})
        await bound(pool, *names)
    [one_round] = {pod.metadata.annotations[ROUND] for pod in await pods_of(pool)}
    assert one_round.endswith("/5/5")
