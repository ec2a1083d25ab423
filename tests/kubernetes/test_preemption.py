"""Preemptions on a real API server: what victims are told, and what a restarted scheduler does."""

from typing import Any

import pytest
from aiohttp import web

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import PODS
from phalanx.kube.gangs.gang_translation import PREEMPTED_BY
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.scheduler import KubeScheduler
from phalanx.kube.writes import rounds_expiry
from phalanx.kube.writes.checkpoints import CHECKPOINT, CHECKPOINTED, PREEMPT_AT
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_scheduler import (
    GPU,
    bound,
    eventually_event,
    gang,
    half_bound,
    pending_reason,
    pods_of,
    priority_class,
    scheduler,
)


async def until(pool: Pool, name: str, annotation: str, *, exists: bool) -> KubePod:
    """Wait until a pod carries an annotation, or does no more."""

    async def is_so() -> bool:
        return (annotation in (await pool.read_pod(name)).metadata.annotations) == exists

    await eventually(is_so, PATIENCE_S)
    return await pool.read_pod(name)


async def until_evicted(pool: Pool, *names: str) -> None:
    """Wait until pods without a kubelet are being deleted or are gone, and let them go."""

    async def are_evicted() -> bool:
        live = {pod.metadata.name for pod in await pods_of(pool) if not pod.is_terminating}
        return not live & {*names}

    await eventually(are_evicted, PATIENCE_S)
    for name in names:
        if name in {pod.metadata.name for pod in await pods_of(pool)}:
            await pool.api.delete(PODS, name, pool.namespace, grace_s=0)


async def until_counted(given: KubeScheduler, evictions: int) -> None:
    """Wait until the scheduler has counted its evictions, none of which failed."""

    async def are_counted() -> bool:
        return given.evictions == {"evicted": evictions}

    await eventually(are_counted, PATIENCE_S, lambda: f"evictions are {given.evictions}")


async def running(pool: Pool, size: int, **fields: Any) -> list[str]:
    """A gang of one GPU per pod that is bound to nodes of its own."""
    names = [f"low-{n}" for n in range(size)]
    for name, node in zip(names, await pool.add_nodes(size, {GPU: "1"}), strict=True):
        await pool.bind(await pool.create_pod(name, requests={GPU: "1"}, **fields), node)
    return names


async def urgent(pool: Pool, name: str = "urgent") -> KubePod:
    """A pod of one GPU with a high priority."""
    if name == "urgent":
        await priority_class(pool, "high", 1000)
    return await pool.create_pod(
        name, requests={GPU: "1"}, priorityClassName=f"{pool.namespace}-high"
    )


async def test_a_preempted_pod_says_by_which_job(pool: Pool) -> None:
    names = await running(pool, 2, **gang("low", 2))
    async with scheduler(pool) as given:
        await urgent(pool)
        sentence = f"preempted by higher-priority gang {pool.namespace}/urgent"
        await eventually_event(pool, "Preempted", sentence)
        await until_evicted(pool, *names)
        await bound(pool, "urgent")
        await until_counted(given, 2)


async def test_evictions_that_a_scheduler_has_begun_are_continued(pool: Pool) -> None:
    """It died after it had marked the victims and before it evicted one."""
    names = await running(pool, 2, **gang("low", 2))
    await urgent(pool)
    for name in names:
        await pool.annotate(name, {PREEMPTED_BY: f"{pool.namespace}/urgent"})
    await pool.set_status("urgent", {"nominatedNodeName": pool.nodes[0]})
    async with scheduler(pool) as given:
        await until_evicted(pool, *names)
        await bound(pool, "urgent")
        await until_counted(given, 2)


async def test_no_pod_is_evicted_for_a_preemptor_that_is_gone(pool: Pool) -> None:
    names = await running(pool, 2, annotations={PREEMPTED_BY: f"{pool.namespace}/deleted"})
    async with scheduler(pool) as given:
        for name in names:
            pod = await until(pool, name, PREEMPTED_BY, exists=False)
            assert not pod.is_terminating
        assert not given.evictions


@pytest.mark.parametrize("wish", ["each", "all"])
async def test_a_victim_is_asked_for_a_checkpoint_before_it_is_evicted(
    pool: Pool, wish: str
) -> None:
    annotations = {CHECKPOINT: wish, CHECKPOINTED: "2020-01-01T00:00:00Z"}
    names = await running(pool, 2, annotations=annotations, **gang("low", 2))
    async with scheduler(pool, checkpoint_wait_s=3600.0) as given:
        await urgent(pool)
        for name in names:
            asked = await until(pool, name, PREEMPT_AT, exists=True)
            assert asked.metadata.annotations[PREEMPTED_BY] == f"{pool.namespace}/urgent"
            assert CHECKPOINTED not in asked.metadata.annotations, "an old answer does not count"
        await pending_reason(pool, "urgent", "starts when")
        await pool.annotate("low-0", {CHECKPOINTED: "true"})
        if wish == "each":
            await until_evicted(pool, "low-0")
        else:
            await pool.create_pod("plain", requests={GPU: "1"})
            await pending_reason(pool, "plain", "short of GPUs")
            assert not (await pool.read_pod("low-0")).is_terminating
        assert not (await pool.read_pod("low-1")).is_terminating
        await pool.annotate("low-1", {CHECKPOINTED: "true"})
        await until_evicted(pool, *(names if wish == "all" else ["low-1"]))
        await eventually_bound(pool, "urgent")
        await until_counted(given, 2)
        assert given.preemptions.lost_gpu_seconds == 0


async def eventually_bound(pool: Pool, name: str) -> None:
    async def is_bound() -> bool:
        return bool((await pool.read_pod(name)).spec.node_name)

    await eventually(is_bound, PATIENCE_S)


async def test_a_victim_that_does_not_answer_is_evicted_in_the_end(pool: Pool) -> None:
    names = await running(pool, 1, annotations={CHECKPOINT: "each"})
    await pool.set_status(
        names[0], {"startTime": "2020-01-01T00:00:00Z", "conditions": _scheduled("2020-01-01")}
    )
    async with scheduler(pool, checkpoint_wait_s=0.5) as given:
        await urgent(pool)
        await until_evicted(pool, *names)
        await bound(pool, "urgent")
        await until_counted(given, 1)
        assert given.preemptions.lost_gpu_seconds > 3600
        await eventually_event(pool, "Preempted", "GPU-seconds of work")


def _scheduled(day: str) -> list[dict[str, str]]:
    at = f"{day}T00:00:00Z"
    return [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]


async def test_a_nomination_is_removed_when_others_took_the_node(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, {GPU: "1"})
    await urgent(pool)
    await pool.set_status("urgent", {"nominatedNodeName": node})
    other = await pool.create_pod("other", requests={GPU: "1"}, schedulerName="other-scheduler")
    await pool.bind(other, node)
    async with scheduler(pool):

        async def is_cleared() -> bool:
            return not (await pool.read_pod("urgent")).status.nominated_node_name

        await eventually(is_cleared, PATIENCE_S)
        await pool.api.delete(PODS, "other", pool.namespace, grace_s=0)
        await bound(pool, "urgent")


async def test_a_budget_holds_for_all_victims_together(pool: Pool) -> None:
    """Of two pods with a budget that lets one go, one is evicted, and one without a budget."""
    names = await running(pool, 3)
    for name in names[:2]:
        body = {"metadata": {"labels": {"app": "web"}}}
        await pool.api.patch(PODS.path(pool.namespace, name), body)
        await pool.set_status(name, {"conditions": [{"type": "Ready", "status": "True"}]})
    await create_budget(pool, allowed=1)
    async with scheduler(pool) as given:
        await priority_class(pool, "high", 1000)
        for number in range(2):
            await pool.create_pod(
                f"urgent-{number}",
                requests={GPU: "1"},
                priorityClassName=f"{pool.namespace}-high",
                **gang("urgent", 2),
            )

        async def are_evicted() -> bool:
            return sum(given.evictions.values()) == 2

        await eventually(are_evicted, PATIENCE_S)
        left = [pod.metadata.name for pod in await pods_of(pool) if not pod.is_terminating]
        assert len({*names[:2]} & {*left}) == 1
        assert names[2] not in left


async def create_budget(pool: Pool, allowed: int) -> None:
    """A budget as the disruption controller would leave it."""
    path = f"/apis/policy/v1/namespaces/{pool.namespace}/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "web"}}
    body = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": selector}}
    await pool.api.request("POST", path, body)
    status = {"disruptionsAllowed": allowed, "observedGeneration": 1, "currentHealthy": 2}
    status |= {"desiredHealthy": 1, "expectedPods": 2}
    await pool.api.patch(f"{path}/web/status", {"status": status})


async def test_an_eviction_of_a_half_bound_gang_that_fails_is_tried_again(
    api_server: ApiServer, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_expiry, "RESEND_S", 0.1)
    await half_bound(pool)
    proxy = FaultyProxy(api_server)
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        refused = web.json_response({"kind": "Status", "code": 403}, status=403)
        proxy.refuse(lambda request: request.path.endswith("/eviction"), refused)
        async with scheduler(pool, client, gang_timeout_s=0.0) as given:

            async def is_evicted() -> bool:
                return given.evictions == {"refused": 1, "evicted": 1}

            await eventually(is_evicted, PATIENCE_S)
