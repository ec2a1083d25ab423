"""The scheduler behind a network that cuts watches, loses answers and refuses requests."""

import asyncio
import random
from collections import Counter

from aiohttp import web

from phalanx.kube.client import ApiClient
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.resources import PODS
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy, is_watch
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_scheduler import GPU, bound, gang, pods_of, scheduler

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def is_bind(request: web.BaseRequest) -> bool:
    return request.path.endswith("/binding")


async def test_the_same_gangs_are_bound_whatever_the_network_does(
    api_server: ApiServer, pool: Pool
) -> None:
    """Gangs are bound whole, no pod is bound twice, and no node has more than it can hold."""
    await pool.add_nodes(6, {GPU: "4"})
    chance = random.Random(11)  # noqa: S311
    proxy = FaultyProxy(api_server)
    names = [f"g{g}-{n}" for g in range(6) for n in range(4)]
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        for status in (429, 500, 503):
            proxy.refuse(lambda request: not is_watch(request), web.Response(status=status))
        async with scheduler(pool, client):
            for name in names:
                await pool.create_pod(name, requests={GPU: "1"}, **gang(name[:2], 4))
                match chance.randrange(6):
                    case 0:
                        proxy.cut_watches()
                    case 1:
                        proxy.lose_answer(is_bind)
                    case 2:
                        proxy.refuse(is_bind, web.Response(status=500))
                    case 3:
                        proxy.refuse(is_bind, web.Response(status=429))
                    case 4:
                        proxy.refuse(is_watch, web.json_response(GONE, status=410))
                        proxy.cut_watches()
            await bound(pool, *names)
    on_nodes = Counter(pod.spec.node_name for pod in await pods_of(pool))
    assert max(on_nodes.values()) <= 4


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
