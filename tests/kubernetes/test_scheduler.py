"""The scheduler on a real API server: gangs of every kind, whole or not at all."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import PODS
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.scheduler import KubeScheduler, SchedulerSettings
from phalanx.kube.writes.rounds import ROUND
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy
from tests.kubernetes.pool import POOL, Pool

GPU = "nvidia.com/gpu"
ACK = "pod-group.scheduling.sigs.k8s.io"


@asynccontextmanager
async def scheduler(
    pool: Pool, client: ApiClient | None = None, **settings: Any
) -> AsyncIterator[KubeScheduler]:
    """A scheduler for the pods and nodes of the pool."""
    given = SchedulerSettings((pool.namespace,), node_labels=f"{POOL}={pool.namespace}", **settings)
    running = KubeScheduler(client or pool.api, given, lambda: True)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def gang(name: str, size: int) -> dict[str, Any]:
    """Labels of a gang by ACK's method."""
    return {"labels": {f"{ACK}/name": name, f"{ACK}/min-available": str(size)}}


async def pods_of(pool: Pool) -> list[KubePod]:
    return await pool.api.list_all(PODS, None, pool.namespace)


async def bound(pool: Pool, *names: str, namespace: str = "") -> None:
    """Wait until exactly these pods are bound, in the pool's namespace or another one."""
    found: list[str] = []

    async def are_bound() -> bool:
        nonlocal found
        pods = await pool.api.list_all(PODS, None, namespace or pool.namespace)
        found = sorted(pod.metadata.name for pod in pods if pod.spec.node_name)
        return found == sorted(names)

    await eventually(are_bound, PATIENCE_S, lambda: f"bound are {found}")


async def pending_reason(pool: Pool, name: str, text: str) -> str:
    """Wait for a reason on the pod with this text; its kind."""
    shown: list[tuple[str, str]] = []

    async def is_shown() -> bool:
        conditions = (await pool.read_pod(name)).status.conditions
        shown[:] = [(c.reason, c.message) for c in conditions if c.type == "PodScheduled"]
        return any(text in message for _, message in shown)

    await eventually(is_shown, PATIENCE_S, lambda: f"{name} shows {shown}")
    return shown[0][0]


async def test_a_gang_is_bound_whole_or_not_at_all(pool: Pool) -> None:
    """The job of two parameter servers and three workers that needs eight GPUs and finds four."""
    await pool.add_nodes(1, {GPU: "4"})
    async with scheduler(pool):
        needs = {"ps-0": "1", "ps-1": "1", "worker-0": "2", "worker-1": "2", "worker-2": "2"}
        for name, gpus in needs.items():
            await pool.create_pod(name, requests={GPU: gpus}, **gang("tfjob", 5))
        for name in needs:
            assert await pending_reason(pool, name, "needs 8 GPUs") == "Unschedulable"
        await bound(pool)
        await pool.add_nodes(1, {GPU: "4"})
        await bound(pool, *needs)
    rounds = {pod.metadata.annotations[ROUND] for pod in await pods_of(pool)}
    assert len(rounds) == 1
    assert rounds.pop().endswith("/5/5")


async def test_pods_without_a_gang_are_placed_one_by_one(pool: Pool) -> None:
    await pool.add_nodes(1, {GPU: "2"})
    async with scheduler(pool):
        for number in range(3):
            await pool.create_pod(f"p{number}", requests={GPU: "1"})
        await bound(pool, "p0", "p1")
        assert await pending_reason(pool, "p2", "GPU") == "Unschedulable"
        await pool.api.delete(PODS, "p0", pool.namespace, grace_s=0)
        await bound(pool, "p1", "p2")


async def test_a_gang_that_is_not_complete_says_so_and_buys_no_nodes(pool: Pool) -> None:
    await pool.add_nodes(1)
    async with scheduler(pool):
        await pool.create_pod("a", **gang("g", 2))
        assert await pending_reason(pool, "a", "gang") == "GangNotReady"
        await pool.create_pod("b", **gang("g", 2))
        await bound(pool, "a", "b")


async def test_pods_of_other_schedulers_are_counted_and_left_alone(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, {GPU: "2"})
    other = await pool.create_pod("other", requests={GPU: "1"}, schedulerName="other-scheduler")
    await pool.bind(other, node)
    await pool.create_pod("unserved", schedulerName="other-scheduler")
    async with scheduler(pool):
        await pool.create_pod("big", requests={GPU: "2"})
        assert await pending_reason(pool, "big", "GPU") == "Unschedulable"
        await pool.create_pod("small", requests={GPU: "1"})
        await bound(pool, "other", "small")


async def test_pods_are_listed_again_only_when_another_scheduler_may_have_bound_some(
    pool: Pool,
) -> None:
    await pool.add_nodes(1)
    async with scheduler(pool) as running:
        await pool.create_pod("first")
        await bound(pool, "first")
        assert running.watch.pods.lists == 1
        running.leadership_changed()
        await pool.create_pod("second")
        await bound(pool, "first", "second")
        assert running.watch.pods.lists == 2


async def test_a_pod_that_another_scheduler_binds_is_reported(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, {GPU: "0"})
    async with scheduler(pool) as running:
        pod = await pool.create_pod("taken", requests={GPU: "1"})
        await pending_reason(pool, "taken", "never fits")
        await pool.bind(pod, node)
        await eventually_event(
            pool, "ForeignBind", f"two schedulers serve the name {pool.namespace}"
        )
        assert running.foreign_binds == 1


async def eventually_event(pool: Pool, reason: str, text: str) -> None:
    async def is_written() -> bool:
        path = f"/api/v1/namespaces/{pool.namespace}/events"
        events = msgspec.json.decode(await pool.api.request("GET", path))["items"]
        return any(each["reason"] == reason and text in each["message"] for each in events)

    await eventually(is_written, PATIENCE_S)


async def test_a_higher_priority_evicts_a_whole_gang(pool: Pool) -> None:
    """The victims are marked, evicted with a reason, and replaced by the preemptor."""
    await pool.add_nodes(2, {GPU: "1"})
    await priority_class(pool, "high", 1000)
    finalizers = ["phalanx.test/keep"]  # so that the test can look at evicted pods
    async with scheduler(pool) as running:
        for name in ("low-0", "low-1"):
            await pool.create_pod(
                name, requests={GPU: "1"}, finalizers=finalizers, **gang("low", 2)
            )
        await bound(pool, "low-0", "low-1")
        await pool.create_pod(
            "high", requests={GPU: "1"}, priorityClassName=f"{pool.namespace}-high"
        )

        async def are_evicted() -> bool:
            return all([(await pool.read_pod(f"low-{n}")).is_terminating for n in range(2)])

        await eventually(are_evicted, PATIENCE_S)
        for number in range(2):
            await eventually_disrupted(pool, f"low-{number}")
        for number in range(2):
            await pool.api.patch(
                PODS.path(pool.namespace, f"low-{number}"), {"metadata": {"finalizers": None}}
            )
            await pool.api.delete(PODS, f"low-{number}", pool.namespace, grace_s=0)
        await bound(pool, "high")

        async def are_counted() -> bool:
            return running.evictions == {"evicted": 2}

        await eventually(are_counted, PATIENCE_S)


async def eventually_disrupted(pool: Pool, name: str) -> None:
    async def is_shown() -> bool:
        pod = await pool.read_pod(name)
        return any(
            (c.type, c.reason) == ("DisruptionTarget", "PreemptionByScheduler")
            and f"{pool.namespace}/high" in c.message
            for c in pod.status.conditions
        )

    await eventually(is_shown, PATIENCE_S)


async def priority_class(pool: Pool, name: str, value: int) -> None:
    """Create a class, and wait until the API server's admission knows it."""
    full_name = f"{pool.namespace}-{name}"
    body = {"metadata": {"name": full_name}, "value": value}
    await pool.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    pod, params = pool.pod("trial", priorityClassName=full_name), {"dryRun": "All"}

    async def is_known() -> bool:
        try:
            await pool.api.request("POST", PODS.path(pool.namespace), pod, params=params)
        except ApiStatusError as error:
            if "no PriorityClass" in error.message:
                return False
            raise
        return True

    await eventually(is_known, PATIENCE_S)


async def controller(pool: Pool) -> dict[str, Any]:
    """The reference to an object that owns pods; without the object they are garbage."""
    path = f"/api/v1/namespaces/{pool.namespace}/configmaps"
    made = msgspec.json.decode(await pool.api.request("POST", path, {"metadata": {"name": "c"}}))
    kind = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True}
    return kind | {"name": "c", "uid": made["metadata"]["uid"]}


async def half_bound(pool: Pool) -> None:
    """A gang of two as a scheduler leaves it that dies between its two binds."""
    [node] = await pool.add_nodes(1, {GPU: "1"})
    owner = await controller(pool)
    for name in ("m-0", "m-1"):
        body = pool.pod(name, requests={GPU: "1"}, **gang("g", 2))
        body["metadata"]["ownerReferences"] = [owner]
        await pool.api.create(PODS, body, pool.namespace)
    await pool.bind(await pool.read_pod("m-0"), node, {ROUND: "abc/2/2"})


async def test_a_gang_that_is_bound_in_part_is_completed_first(pool: Pool) -> None:
    await half_bound(pool)
    async with scheduler(pool):
        await pool.create_pod("other", requests={GPU: "1"})
        await pending_reason(pool, "other", "short of GPUs")
        await bound(pool, "m-0")
        await pool.add_nodes(1, {GPU: "1"})
        await bound(pool, "m-0", "m-1")


async def test_a_gang_that_stays_bound_in_part_is_evicted(pool: Pool) -> None:
    await half_bound(pool)
    async with scheduler(pool, gang_timeout_s=0.0) as running:
        await eventually_event(pool, "GangTimedOut", "was bound in part for 0 s")
        assert running.evictions == {"evicted": 1}
    assert (await pool.read_pod("m-0")).is_terminating


async def test_a_scheduler_that_dies_while_it_binds_leaves_no_gang_in_part(
    api_server: ApiServer, pool: Pool
) -> None:
    """Schedulers are stopped between any two binds. The next one completes what they began."""
    await pool.add_nodes(8, {GPU: "4"})
    names = [f"g{g}-{n}" for g in range(8) for n in range(4)]
    for name in names:
        await pool.create_pod(name, requests={GPU: "1"}, **gang(name[:2], 4))
    chance = random.Random(7)  # noqa: S311
    proxy = FaultyProxy(api_server)
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        for _ in range(6):
            async with scheduler(pool, client) as running:
                wanted = chance.randrange(1, 12)
                await until_bound(pool, running, wanted)
            # The next one does not lead before what this one has sent was carried out.
            await until_idle(proxy)
    async with scheduler(pool):
        await bound(pool, *names)
    on_nodes = Counter(pod.spec.node_name for pod in await pods_of(pool))
    assert max(on_nodes.values()) <= 4


async def until_idle(proxy: FaultyProxy) -> None:
    async def is_idle() -> bool:
        return not proxy.under_way

    await eventually(is_idle, PATIENCE_S)


async def until_bound(pool: Pool, running: KubeScheduler, count: int) -> None:
    """Wait until the scheduler has begun to bind this many pods, or has nothing left to bind."""

    async def has_bound() -> bool:
        pods = running.model.pods.pods
        own = [uid for uid, pod in pods.items() if pod.metadata.namespace == pool.namespace]
        bound = sum(bool(running.model.pods.node_of(uid)) for uid in own)
        return bool(own) and bound >= min(count, len(own))

    await eventually(has_bound, PATIENCE_S)
