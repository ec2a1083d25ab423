"""Gangs of every dialect, declared with objects that the API server has accepted."""

from typing import Any

import pytest

from phalanx.kube.api.resources import pod_groups
from tests.kubernetes.custom_resources import definition, install
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_scheduler import GPU, bound, pending_reason, scheduler

KOORDINATOR = "gang.scheduling.koordinator.sh"


async def test_a_pod_group_of_kubernetes_itself(pool: Pool) -> None:
    """`schedulingGroup` on pods, with the PodGroup created after them."""
    await pool.add_nodes(1)
    group = {"podGroupName": "native"}
    async with scheduler(pool):
        await pool.create_pod("a", schedulingGroup=group)
        await pool.create_pod("b", schedulingGroup=group)
        assert await pending_reason(pool, "a", "native") == "GangNotReady"
        body = {
            "metadata": {"name": "native"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
        await pool.api.create(pod_groups("scheduling.k8s.io", "v1alpha2"), body, pool.namespace)
        await bound(pool, "a", "b")


@pytest.mark.parametrize("api_group", ["scheduling.x-k8s.io", "scheduling.sigs.k8s.io"])
async def test_a_pod_group_of_a_custom_resource(pool: Pool, api_group: str) -> None:
    await pool.add_nodes(1, {GPU: "1"})
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    await install(pool.api, definition(api_group, "PodGroup", has_status=True))
    async with scheduler(pool):
        groups = pod_groups(api_group, "v1alpha1")
        body: dict[str, Any] = {"apiVersion": groups.api_version, "kind": "PodGroup"}
        body |= {"metadata": {"name": "g"}, "spec": {"minMember": 2}}
        await pool.api.create(groups, body, pool.namespace)
        for name in ("a", "b"):
            await pool.create_pod(name, requests={GPU: "1"}, labels=label)
        assert await pending_reason(pool, "b", "needs 2 GPUs") == "Unschedulable"
        await bound(pool)
        await pool.add_nodes(1, {GPU: "1"})
        await bound(pool, "a", "b")


async def test_annotations_of_koordinator(pool: Pool) -> None:
    """Members that arrive after the gang was satisfied are ordinary pods."""
    await pool.add_nodes(1, {GPU: "3"})
    annotations = {f"{KOORDINATOR}/name": "g", f"{KOORDINATOR}/min-available": "2"}
    async with scheduler(pool):
        for name in ("a", "b"):
            await pool.create_pod(name, requests={GPU: "1"}, annotations=annotations)
        await bound(pool, "a", "b")
        await pool.create_pod("later", requests={GPU: "1"}, annotations=annotations)
        await bound(pool, "a", "b", "later")


async def test_gangs_of_a_group_start_together(pool: Pool) -> None:
    await pool.add_nodes(1, {GPU: "2"})
    names = f'["{pool.namespace}/x", "{pool.namespace}/y"]'

    def of(gang: str) -> dict[str, str]:
        return {
            f"{KOORDINATOR}/name": gang,
            f"{KOORDINATOR}/min-available": "1",
            f"{KOORDINATOR}/groups": names,
        }

    async with scheduler(pool):
        await pool.create_pod("x-0", requests={GPU: "1"}, annotations=of("x"))
        assert await pending_reason(pool, "x-0", "y") == "GangNotReady"
        await pool.create_pod("y-0", requests={GPU: "1"}, annotations=of("y"))
        await bound(pool, "x-0", "y-0")
