"""PodGroups of every dialect as users see them: status, events, and those that are created."""

from itertools import groupby
from typing import Any

import msgspec
import pytest

from phalanx.kube.api.resources import PODS, Resource, pod_groups
from phalanx.kube.gangs.gang_terms import OUTPUT_LABEL
from phalanx.kube.objects.gang import KubePodGroup
from phalanx.kube.scheduler import KubeScheduler
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.custom_resources import definition, install
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_commands import KubeTerminal
from tests.kubernetes.test_scheduler import (
    GPU,
    bound,
    controller,
    eventually_event,
    gang,
    pending_reason,
    scheduler,
)

NATIVE = pod_groups("scheduling.k8s.io", "v1alpha2")
CURRENT = pod_groups("scheduling.x-k8s.io", "v1alpha1")
VOLCANO = pod_groups("scheduling.volcano.sh", "v1alpha1")


async def create(
    pool: Pool, groups: Resource[KubePodGroup], name: str, **spec: Any
) -> dict[str, Any]:
    if groups is not NATIVE:
        has_status = groups is CURRENT
        await install(pool.api, definition(groups.group, "PodGroup", has_status=has_status))
    body: dict[str, Any] = {"apiVersion": groups.api_version, "kind": "PodGroup"}
    body |= {"metadata": {"name": name}, "spec": spec}
    await pool.api.create(groups, body, pool.namespace)
    return body


async def read(pool: Pool, groups: Resource[KubePodGroup], name: str) -> dict[str, Any]:
    answer = await pool.api.request("GET", groups.path(pool.namespace, name))
    return dict(msgspec.json.decode(answer))


async def until_status(
    pool: Pool, groups: Resource[KubePodGroup], name: str, **wanted: Any
) -> dict[str, Any]:
    """Wait until the status has these fields; the whole status."""
    status: dict[str, Any] = {}

    async def is_shown() -> bool:
        status.clear()
        status.update((await read(pool, groups, name)).get("status", {}))
        return {field: status.get(field) for field in wanted} == wanted

    await eventually(is_shown, PATIENCE_S, lambda: f"the status is {status}")
    return status


async def until_condition(
    pool: Pool, groups: Resource[KubePodGroup], name: str, *wanted: str
) -> str:
    """Wait for a condition with this type, status and reason; its message."""
    shown: list[Any] = []

    async def is_shown() -> bool:
        status = (await read(pool, groups, name)).get("status", {})
        shown[:] = status.get("conditions", [])
        return any((each["type"], each["status"], each["reason"]) == wanted for each in shown)

    await eventually(is_shown, PATIENCE_S, lambda: f"the conditions are {shown}")
    return next(str(each["message"]) for each in shown if each["type"] == wanted[0])


async def group_events(pool: Pool, *reasons: str) -> None:
    """Wait for events about a PodGroup with these reasons, in this order. A reason that is the same
    with and without the pods may be told twice."""
    written: list[str] = []

    async def are_written() -> bool:
        path = f"/api/v1/namespaces/{pool.namespace}/events"
        events = msgspec.json.decode(await pool.api.request("GET", path))["items"]
        events.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
        told = (e["reason"] for e in events if e["involvedObject"]["kind"] == "PodGroup")
        written[:] = [reason for reason, _ in groupby(told)]
        return written == list(reasons)

    await eventually(are_written, PATIENCE_S, lambda: f"events are {written}")


async def until_written(running: KubeScheduler, statuses: int) -> None:
    """Wait until so many statuses are written. What has not changed is not written."""

    async def are_written() -> bool:
        return running.groups.writes >= statuses

    await eventually(are_written, PATIENCE_S)
    assert running.groups.writes == statuses


async def until_gone(pool: Pool, groups: Resource[KubePodGroup], name: str) -> None:
    async def is_gone() -> bool:
        listed = await pool.api.list_all(groups, None, pool.namespace)
        return name not in {each.metadata.name for each in listed}

    await eventually(is_gone, PATIENCE_S)


async def test_the_pod_group_of_kubernetes_itself_has_a_condition(pool: Pool) -> None:
    await pool.add_nodes(1, {GPU: "1"})
    await create(pool, NATIVE, "g", schedulingPolicy={"gang": {"minCount": 2}})
    for name in ("a", "b"):
        await pool.create_pod(name, requests={GPU: "1"}, schedulingGroup={"podGroupName": "g"})
    async with scheduler(pool) as running:
        wanted = ("PodGroupScheduled", "False", "Unschedulable")
        assert "needs 2 GPUs" in await until_condition(pool, NATIVE, "g", *wanted)
        await group_events(pool, "Unschedulable")
        await pool.add_nodes(1, {GPU: "1"})
        await until_condition(pool, NATIVE, "g", "PodGroupScheduled", "True", "Scheduled")
        await group_events(pool, "Unschedulable", "Scheduled")
        await until_written(running, 2)
    async with scheduler(pool) as running:
        other = await create(pool, NATIVE, "h", schedulingPolicy={"gang": {"minCount": 2}})
        assert other["metadata"]["name"] == "h"
        await pool.create_pod("c", schedulingGroup={"podGroupName": "h"})
        await until_condition(pool, NATIVE, "h", "PodGroupScheduled", "False", "GangNotReady")
        await until_written(running, 1)


@pytest.mark.usefixtures("kwok")
async def test_the_pod_group_of_scheduler_plugins_has_phase_and_counts(pool: Pool) -> None:
    await pool.add_nodes(2, {GPU: "1"}, kubelet="kwok")
    await create(pool, CURRENT, "g", minMember=2)
    owner = await controller(pool)
    async with scheduler(pool):
        for name in ("a", "b"):
            body = pool.pod(name, labels={"scheduling.x-k8s.io/pod-group": "g"})
            body["metadata"]["ownerReferences"] = [owner]
            await pool.api.create(PODS, body, pool.namespace)
            if name == "a":
                await until_status(pool, CURRENT, "g", phase="Pending")
        status = await until_status(pool, CURRENT, "g", phase="Running", running=2)
        assert status["occupiedBy"] == f"{pool.namespace}/c"
        assert "." in status["scheduleStartTime"], "two starts within a second differ"
        await pool.annotate("a", {"phalanx.test/end": "Succeeded"})
        await pool.annotate("b", {"phalanx.test/end": "Succeeded"})
        await until_status(pool, CURRENT, "g", phase="Finished", running=0, succeeded=2)


@pytest.mark.usefixtures("kwok")
async def test_a_controller_of_volcano_creates_pods_when_the_group_is_in_the_queue(
    pool: Pool,
) -> None:
    """Volcano's controllers create no pods before their PodGroup is `Inqueue`."""
    await pool.add_nodes(1, {GPU: "1"}, kubelet="kwok")
    await create(pool, VOLCANO, "job", minMember=2, minResources={GPU: "2"})
    async with scheduler(pool):
        await until_status(pool, VOLCANO, "job", phase="Inqueue")
        annotations = {"scheduling.k8s.io/group-name": "job"}
        for name in ("worker-0", "worker-1"):
            await pool.create_pod(name, requests={GPU: "1"}, annotations=annotations)
        wanted = ("Unschedulable", "True", "Unschedulable")
        assert "needs 2 GPUs" in await until_condition(pool, VOLCANO, "job", *wanted)
        await pool.add_nodes(1, {GPU: "1"}, kubelet="kwok")
        await until_status(pool, VOLCANO, "job", phase="Running", running=2)
        await until_condition(pool, VOLCANO, "job", "Scheduled", "True", "Scheduled")
        for name in ("worker-0", "worker-1"):
            await pool.annotate(name, {"phalanx.test/end": "Succeeded"})
        await until_status(pool, VOLCANO, "job", phase="Completed", running=0, succeeded=2)


async def test_what_is_not_honoured_of_a_pod_group_is_told_on_it(
    api_server: ApiServer, pool: Pool
) -> None:
    """A required topology keeps the gang pending; a preferred one is an event. A PodGroup whose
    pods are not to be created says why."""
    await pool.add_nodes(1)
    topology = {"mode": "hard", "highestTierAllowed": 1}
    await create(pool, VOLCANO, "hard", minMember=1, networkTopology=topology)
    annotations = {"scheduling.k8s.io/group-name": "hard"}
    await pool.create_pod("a", annotations=annotations)
    async with scheduler(pool):
        kind = await pending_reason(pool, "a", "spec.networkTopology is not supported; remove it")
        assert kind == "NotSupported"
        wanted = ("Unschedulable", "True", "NotSupported")
        assert "networkTopology" in await until_condition(pool, VOLCANO, "hard", *wanted)
        await group_events(pool, "NotSupported")
        await create(pool, VOLCANO, "soft", minMember=1, networkTopology={"mode": "soft"})
        await pool.create_pod("b", annotations={"scheduling.k8s.io/group-name": "soft"})
        await bound(pool, "b")
        await create(pool, VOLCANO, "empty", minMember=1, queue="nowhere")
        wanted = ("Unschedulable", "True", "GangNotReady")
        message = await until_condition(pool, VOLCANO, "empty", *wanted)
        assert message == "queue nowhere does not exist"
        said = await KubeTerminal(api_server, pool).type("why", "empty")
        assert f"PodGroup {pool.namespace}/empty has no pods: {message}" in said.err
        await eventually_event(pool, "FieldNotUsed", "spec.networkTopology is soft, and not used")


async def test_a_pod_group_is_created_for_a_gang_of_labels(pool: Pool) -> None:
    """It is output only, and deleted with its last pod."""
    await install(pool.api, definition(CURRENT.group, "PodGroup", has_status=True))
    await pool.add_nodes(1, {GPU: "1"})
    async with scheduler(pool):
        for name in ("a", "b"):
            await pool.create_pod(name, requests={GPU: "1"}, **gang("g", 2))

        async def exists() -> bool:
            listed = await pool.api.list_all(CURRENT, None, pool.namespace)
            return [each.metadata.labels for each in listed] == [{OUTPUT_LABEL: pool.namespace}]

        await eventually(exists, PATIENCE_S)
        await until_status(pool, CURRENT, "g", phase="Scheduling")
        await pool.add_nodes(1, {GPU: "1"})
        await bound(pool, "a", "b")
        for name in ("a", "b"):
            await pool.api.delete(PODS, name, pool.namespace, grace_s=0)
        await until_gone(pool, CURRENT, "g")
