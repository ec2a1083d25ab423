"""The rules of gangs on a real API server: match policies, non-strict gangs and their timeouts,
groups across namespaces, nodes that refuse pods or disappear."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from phalanx.core.time_units import SECOND
from phalanx.kube.api.resources import NAMESPACES, NODES, PODS
from phalanx.kube.gangs.gang import HELD_SINCE
from phalanx.kube.gangs.gang_terms import TIMED_OUT
from phalanx.kube.model import refused_nodes
from phalanx.kube.objects.metadata import time_text
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.scheduler import KubeScheduler
from phalanx.kube.writes.rounds import bound_at
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_preemption import eventually_bound, until
from tests.kubernetes.test_scheduler import (
    ACK,
    GPU,
    bound,
    controller,
    eventually_event,
    gang,
    pending_reason,
    pods_of,
    scheduler,
)

HOST = "kubernetes.io/hostname"
KOORDINATOR = "gang.scheduling.koordinator.sh"


def koordinator(name: str, size: int, **keys: str) -> dict[str, str]:
    """Annotations of a gang by Koordinator's method."""
    given = {key.replace("_", "-"): each for key, each in keys.items()}
    given |= {"name": name, "min-available": str(size)}
    return {f"{KOORDINATOR}/{key}": each for key, each in given.items()}


async def until_phase(pool: Pool, name: str, phase: str) -> None:
    async def has_phase() -> bool:
        return (await pool.read_pod(name)).status.phase == phase

    await eventually(has_phase, PATIENCE_S)


async def until_holds(holds: Callable[[], bool]) -> None:
    """Wait for what the scheduler knows. Its watches of pods and nodes keep no common order."""

    async def ask() -> bool:
        return holds()

    await eventually(ask, PATIENCE_S)


async def until_left_out(running: KubeScheduler, failed: KubePod) -> None:
    """Wait until the scheduler knows that the kubelet has refused a pod."""
    await until_holds(lambda: failed.spec.node_name in running.model._refused.of(failed))


async def until_later_than_bind(pool: Pool, name: str) -> None:
    """Wait until a new pod is younger than this pod's bind. The API's times have whole seconds."""
    at = bound_at(await pool.read_pod(name))
    assert at is not None

    async def is_later() -> bool:
        return datetime.now(UTC) > at + timedelta(seconds=1)

    await eventually(is_later, PATIENCE_S)


@pytest.mark.usefixtures("kwok")
@pytest.mark.parametrize(
    ("policy", "other_ended", "is_placed"),
    [
        ("only-waiting", False, False),
        ("waiting-and-running", False, True),
        ("waiting-and-running", True, False),
        ("waiting-running-succeed", True, True),
        ("once-satisfied", True, True),
    ],
)
async def test_the_match_policy_decides_who_counts_when_a_member_is_replaced(
    pool: Pool, policy: str, *, other_ended: bool, is_placed: bool
) -> None:
    """One of two members is lost, the other one runs or has succeeded, and the scheduler is new."""
    await pool.add_nodes(1, kubelet="kwok")
    keys = gang("g", 2)
    keys["labels"][f"{ACK}/match-policy"] = policy
    async with scheduler(pool):
        for name in ("a", "b"):
            await pool.create_pod(name, **keys)
        await bound(pool, "a", "b")
    await until_phase(pool, "b", "Running")
    if other_ended:
        await pool.annotate("b", {"phalanx.test/end": "Succeeded"})
        await until_phase(pool, "b", "Succeeded")
    await pool.api.delete(PODS, "a", pool.namespace, grace_s=0)
    await until_later_than_bind(pool, "b")
    async with scheduler(pool):
        await pool.create_pod("c", **keys)
        if is_placed:
            await eventually_bound(pool, "c")
        else:
            assert await pending_reason(pool, "c", "gang") == "GangNotReady"


async def test_gangs_that_hold_what_the_other_needs_do_not_wait_for_ever(pool: Pool) -> None:
    """Two non-strict gangs hold one GPU each, on the node that the other one needs as a whole."""
    [large] = await pool.add_nodes(1, {GPU: "2"})
    [small] = await pool.add_nodes(1, {GPU: "1"})
    await pool.bind(await pool.create_pod("x", requests={GPU: "1"}, schedulerName="other"), large)
    async with scheduler(pool):
        # Creation times have whole seconds: of two gangs of one second, the names decide.
        for name, held, other, gpus in (
            ("first", small, large, "2"),
            ("second", large, small, "1"),
        ):
            annotations = koordinator(name, 2, mode="NonStrict", waiting_time="1h")
            fields: dict[str, Any] = {"annotations": annotations, "nodeSelector": {HOST: held}}
            await pool.create_pod(f"{name}-0", requests={GPU: "1"}, **fields)
            fields["nodeSelector"] = {HOST: other}
            await pool.create_pod(f"{name}-1", requests={GPU: gpus}, **fields)
            await until(pool, f"{name}-0", HELD_SINCE, exists=True)
        await pool.api.delete(PODS, "x", pool.namespace, grace_s=0)
        await bound(pool, "first-0", "first-1")


async def test_a_gang_whose_waiting_time_is_over_is_not_placed_again(pool: Pool) -> None:
    """It releases what it holds, and other pods can use it."""
    [taken, _] = await pool.add_nodes(2, {GPU: "1"})
    await pool.bind(await pool.create_pod("x", requests={GPU: "1"}, schedulerName="other"), taken)
    annotations = koordinator("g", 2, mode="NonStrict", waiting_time="1s")
    async with scheduler(pool):
        for name in ("a", "b"):
            await pool.create_pod(name, requests={GPU: "1"}, annotations=annotations)
        for name in ("a", "b"):
            pod = await until(pool, name, TIMED_OUT, exists=True)
            assert pod.metadata.annotations[TIMED_OUT] == "true"
        await until(pool, "a", HELD_SINCE, exists=False)
        await pool.create_pod("other", requests={GPU: "1"})
        await eventually_bound(pool, "other")
        await pool.add_nodes(2, {GPU: "1"})
        assert await pending_reason(pool, "a", "waiting time has ended") == "GangNotReady"
        await eventually_event(pool, "Timeout", "did not start within 1 s")
        await bound(pool, "other", "x")


async def test_the_waiting_time_goes_on_when_the_scheduler_is_restarted(pool: Pool) -> None:
    """An hour of waiting began two hours ago, with another scheduler."""
    await pool.add_nodes(1, {GPU: "1"})
    annotations = koordinator("g", 2, mode="NonStrict", waiting_time="1h")
    annotations[HELD_SINCE] = time_text(datetime.now(UTC) - timedelta(hours=2))
    for name in ("a", "b"):
        await pool.create_pod(name, requests={GPU: "1"}, annotations=annotations)
    async with scheduler(pool):
        for name in ("a", "b"):
            await until(pool, name, TIMED_OUT, exists=True)


async def test_gangs_of_two_namespaces_start_together_if_both_name_each_other(pool: Pool) -> None:
    other = f"{pool.namespace}-b"
    await pool.api.create(NAMESPACES, {"metadata": {"name": other}})
    await pool.add_nodes(1, {GPU: "2"})
    groups = json.dumps([f"{pool.namespace}/x", f"{other}/y"])

    async def create(namespace: str, name: str, size: int = 1, **keys: str) -> None:
        annotations = koordinator(name, size, **keys)
        body = pool.pod(f"{name}-0", requests={GPU: "1"}, annotations=annotations)
        await pool.api.create(PODS, body, namespace)

    async with scheduler(pool):
        await create(other, "y", size=2)
        await create(pool.namespace, "x", groups=groups)
        text = f"gang {other}/y does not name {pool.namespace}/x in its groups"
        assert await pending_reason(pool, "x-0", text) == "GangNotReady"
        await pool.api.delete(PODS, "y-0", other, grace_s=0)
        await create(other, "y", groups=groups)
        await bound(pool, "x-0")
        await bound(pool, "y-0", namespace=other)
        await pool.api.delete(PODS, "y-0", other, grace_s=0)


async def test_a_node_whose_kubelet_refuses_a_pod_is_left_out_for_a_while(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a gang, and of the controller of pods without a gang."""
    monkeypatch.setattr(refused_nodes, "FIRST_PAUSE", 3600 * SECOND)
    [node] = await pool.add_nodes(1)
    owner = await controller(pool)

    async def create(name: str, **fields: Any) -> None:
        body = pool.pod(name, **fields)
        body["metadata"]["ownerReferences"] = [owner]
        await pool.api.create(PODS, body, pool.namespace)

    async with scheduler(pool) as running:
        for first, second, keys in (("m-0", "m-1", gang("g", 1)), ("p-0", "p-1", {})):
            await create(first, **keys)
            await eventually_bound(pool, first)
            await pool.set_status(first, {"phase": "Failed", "reason": "OutOfcpu"})
            await until_left_out(running, await pool.read_pod(first))
            await create(second, **keys)
            text = f"not tried on {node}, whose kubelet refused such a pod"
            assert await pending_reason(pool, second, text) == "Unschedulable"
        await pool.create_pod("other")
        await eventually_bound(pool, "other")
        [spare] = await pool.add_nodes(1)
        for name in ("m-1", "p-1"):
            await eventually_bound(pool, name)
            assert (await pool.read_pod(name)).spec.node_name == spare


async def test_a_gang_survives_a_node_that_disappears(pool: Pool) -> None:
    """The pod garbage collector removes its pods, and their replacements are placed elsewhere."""
    [gone] = await pool.add_nodes(1, {GPU: "1"})
    keys = gang("g", 2)
    keys["labels"][f"{ACK}/match-policy"] = "waiting-and-running"
    async with scheduler(pool) as running:
        for name in ("a", "b"):
            await pool.create_pod(name, requests={GPU: "1"}, **keys)
        await pending_reason(pool, "a", "needs 2 GPUs")
        await pool.add_nodes(1, {GPU: "1"})
        await bound(pool, "a", "b")
        [lost] = [p.metadata.name for p in await pods_of(pool) if p.spec.node_name == gone]
        await pool.api.delete(NODES, gone)
        await until_holds(lambda: gone not in running.model.nodes)
        # What the pod garbage collector does after 40 s.
        await pool.api.delete(PODS, lost, pool.namespace, grace_s=0)
        await pool.create_pod("c", requests={GPU: "1"}, **keys)
        await pending_reason(pool, "c", "GPU")
        await pool.add_nodes(1, {GPU: "1"})
        await eventually_bound(pool, "c")
        [kept] = {"a", "b"} - {lost}
        await bound(pool, kept, "c")
