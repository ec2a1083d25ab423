"""What each answer to a bind means, on a real API server behind a proxy with faults."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import PODS
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.binder import Binder, BindOutcome, BindResult
from phalanx.kube.writes.calls import Bind, reference
from phalanx.kube.writes.evictor import Evictor, EvictResult
from phalanx.kube.writes.rounds import ROUND, BindRound
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy
from tests.kubernetes.pool import Pool

ROUND_1 = BindRound("r1", 1, 1)


def is_bind(request: web.BaseRequest) -> bool:
    return request.path.endswith("/binding")


def is_read(request: web.BaseRequest) -> bool:
    return request.method == "GET"


@pytest.fixture
def proxy(api_server: ApiServer) -> FaultyProxy:
    return FaultyProxy(api_server)


@pytest_asyncio.fixture
async def client(proxy: FaultyProxy) -> AsyncIterator[ApiClient]:
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        yield client


@pytest_asyncio.fixture
async def node(pool: Pool) -> str:
    [node] = await pool.add_nodes(1)
    return node


async def bind(client: ApiClient, pod: KubePod, node: str) -> BindOutcome:
    return await Binder(client, lambda: True).bind(Bind(reference(pod), node), ROUND_1)


async def test_a_bind_writes_node_and_round_at_once(
    pool: Pool, client: ApiClient, node: str
) -> None:
    pod = await pool.create_pod("p")
    assert (await bind(client, pod, node)).result is BindResult.BOUND
    after = await pool.read_pod("p")
    assert after.spec.node_name == node
    assert after.metadata.annotations[ROUND] == "r1/1/1"


async def test_a_bind_whose_answer_is_lost_is_found_done(
    pool: Pool, proxy: FaultyProxy, client: ApiClient, node: str
) -> None:
    pod = await pool.create_pod("p")
    proxy.lose_answer(is_bind)
    proxy.refuse(is_read, web.Response(status=503))
    assert (await bind(client, pod, node)).result is BindResult.BOUND
    binds = [request for request in proxy.requests if is_bind(request)]
    assert len(binds) == 1


@pytest.mark.parametrize("status", [500, 429, 503])
async def test_a_bind_that_had_no_effect_is_sent_again(
    pool: Pool, proxy: FaultyProxy, client: ApiClient, node: str, status: int
) -> None:
    pod = await pool.create_pod("p")
    proxy.refuse(is_bind, web.Response(status=status))
    assert (await bind(client, pod, node)).result is BindResult.BOUND


async def test_a_pod_that_is_bound_elsewhere_gone_or_replaced_is_told_apart(
    pool: Pool, client: ApiClient, node: str
) -> None:
    [other] = await pool.add_nodes(1)
    taken = await pool.create_pod("taken")
    await pool.bind(taken, other)
    outcome = await bind(client, taken, node)
    assert outcome.result is BindResult.ELSEWHERE
    assert outcome.message == f"another scheduler has bound the pod to {other}"
    assert (await bind(client, taken, other)).result is BindResult.BOUND

    deleted = await pool.create_pod("deleted")
    await pool.api.delete(PODS, "deleted", pool.namespace, grace_s=0)
    assert (await bind(client, deleted, node)).result is BindResult.GONE
    await pool.create_pod("deleted")
    assert (await bind(client, deleted, node)).result is BindResult.GONE
    assert not (await pool.read_pod("deleted")).spec.node_name

    ending = await pool.create_pod("ending", finalizers=["phalanx.test/keep"])
    await pool.api.delete(PODS, "ending", pool.namespace)
    assert (await bind(client, ending, node)).result is BindResult.GONE
    await pool.api.patch(PODS.path(pool.namespace, "ending"), {"metadata": {"finalizers": None}})


async def test_a_gated_pod_is_refused_and_stays_pending(
    pool: Pool, client: ApiClient, node: str
) -> None:
    pod = await pool.create_pod("gated", schedulingGates=[{"name": "phalanx.test/wait"}])
    outcome = await bind(client, pod, node)
    assert outcome.result is BindResult.REFUSED
    assert "schedulingGates" in outcome.message


async def test_nothing_is_sent_without_leadership(
    pool: Pool, proxy: FaultyProxy, client: ApiClient, node: str
) -> None:
    pod = await pool.create_pod("p")
    outcome = await Binder(client, lambda: False).bind(Bind(reference(pod), node), ROUND_1)
    assert outcome.result is BindResult.UNKNOWN
    evicted = await Evictor(client, lambda: False).evict(reference(pod), "Test", "test")
    assert evicted is EvictResult.UNKNOWN
    assert not proxy.requests


async def test_an_eviction_waits_for_its_budget_and_gives_its_reason(
    pool: Pool, proxy: FaultyProxy, client: ApiClient, node: str
) -> None:
    evictor = Evictor(client, lambda: True)
    pod = await pool.create_pod("p", finalizers=["phalanx.test/keep"])
    await pool.bind(pod, node)
    refusal = {"kind": "Status", "code": 429, "details": {"retryAfterSeconds": 0}}
    proxy.refuse(
        lambda request: request.path.endswith("/eviction"),
        web.json_response(refusal, status=429),
    )
    assert await evictor.evict(reference(pod), "Test", "a test") is EvictResult.EVICTED
    after = await pool.read_pod("p")
    assert after.is_terminating
    [target] = [c for c in after.status.conditions if c.type == "DisruptionTarget"]
    assert (target.reason, target.message) == ("Test", "a test")
    await pool.api.patch(PODS.path(pool.namespace, "p"), {"metadata": {"finalizers": None}})
    await pool.api.delete(PODS, "p", pool.namespace, grace_s=0)
    assert await evictor.evict(reference(pod), "Test", "test") is EvictResult.GONE
