"""The scheduler behind a network that cuts watches, loses answers and refuses requests."""

import asyncio
import random
from collections import Counter
from contextlib import nullcontext

from aiohttp import web

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import PODS
from phalanx.kube.objects.pod import KubePod
from tests.integration.server.waiting import pass_time
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy, is_watch
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_scheduler import GPU, bound, gang, pods_of, scheduler

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def is_bind(request: web.BaseRequest) -> bool:
    return request.path.endswith("/binding")


async def placement(pool: Pool, proxy: FaultyProxy | None = None) -> dict[str, str]:
    """The nodes on which a scheduler binds twelve gangs of four, by pod; nodes without the name of
    the pool. They exist before the scheduler starts."""
    await pool.add_nodes(8, {GPU: "6"})
    names = [f"g{g}-{n}" for g in range(10, 22) for n in range(4)]
    for name in names:
        await pool.create_pod(name, requests={GPU: "1"}, **gang(name[:3], 4))
    connected = ApiClient(proxy.connection) if proxy else nullcontext(pool.api)
    async with connected as client, scheduler(pool, client):
        await bound(pool, *names)
    return {
        pod.metadata.name: pod.spec.node_name.removeprefix(pool.namespace)
        for pod in await pods_of(pool)
    }


async def test_the_placement_is_the_same_whatever_the_network_does(
    api_server: ApiServer, pool: Pool, other_pool: Pool
) -> None:
    """The network cuts watches, delays and repeats requests, repeats events, loses answers, and
    answers in place of the API server. The placement is that of a scheduler without faults."""
    proxy = FaultyProxy(api_server)
    proxy.repeats_events = True
    for status in (429, 500, 503):
        proxy.refuse(lambda request: not is_watch(request), web.Response(status=status))
        proxy.refuse(is_bind, web.Response(status=status))
    proxy.refuse(is_watch, web.json_response(GONE, status=410))
    for _ in range(4):
        proxy.lose_answer(is_bind)
        proxy.delay(is_bind, 0.3)
        proxy.repeat(is_bind)
    cutting = asyncio.create_task(cut_forever(proxy))
    try:
        async with proxy.serving():
            found = await placement(pool, proxy)
    finally:
        cutting.cancel()
    assert proxy.faults_left == 0
    assert found == await placement(other_pool)


async def cut_forever(proxy: FaultyProxy) -> None:
    while True:
        await pass_time(0.1)
        proxy.cut_watches()


async def test_gangs_come_and_go(pool: Pool) -> None:
    """No node is overcommitted at any time, and in the end every gang that fits is bound whole."""
    await pool.add_nodes(4, {GPU: "4"})
    chance = random.Random(3)  # noqa: S311
    alive: set[str] = set()
    async with scheduler(pool):
        for number in range(24):
            name = f"g{number}"
            await asyncio.gather(
                *(
                    pool.create_pod(f"{name}-{n}", requests={GPU: "1"}, **gang(name, 3))
                    for n in range(3)
                )
            )
            alive.add(name)
            if len(alive) > 4 or chance.random() < 0.3:
                gone = chance.choice(sorted(alive))
                alive.discard(gone)
                for n in range(3):
                    await pool.api.delete(PODS, f"{gone}-{n}", pool.namespace, grace_s=0)
            _check(await pods_of(pool))
        wanted = [f"{name}-{n}" for name in alive for n in range(3)]
        await bound(pool, *wanted)
        _check(await pods_of(pool))


def _check(pods: list[KubePod]) -> None:
    on_nodes = Counter(pod.spec.node_name for pod in pods if pod.spec.node_name)
    assert all(count <= 4 for count in on_nodes.values())
