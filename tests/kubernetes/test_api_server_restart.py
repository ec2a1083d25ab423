"""An API server that is killed and restarted, under a watch and under a scheduler."""

import asyncio
from collections import Counter
from pathlib import Path

from phalanx.kube.api.client import ApiClient
from phalanx.kube.connection.kubeconfig import find_connection
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pool import Pool
from tests.kubernetes.test_reflector import Copy
from tests.kubernetes.test_scheduler import GPU, bound, gang, pods_of, scheduler, until_bound


async def test_copies_and_gangs_survive_a_restart_of_the_api_server(
    control_plane_binary: Path, tmp_path: Path
) -> None:
    """Gangs that were pending, or were being bound, when the API server died are bound whole."""
    plane = await asyncio.to_thread(ControlPlane, control_plane_binary, tmp_path / "plane")
    try:
        async with ApiClient(find_connection(plane.address.kubeconfig)) as client:
            pool = Pool(client, "restart")
            await pool.open()
            await pool.add_nodes(8, {GPU: "4"})
            names = [f"g{g}-{n}" for g in range(8) for n in range(4)]
            for name in names:
                await pool.create_pod(name, requests={GPU: "1"}, **gang(name[:2], 4))
            async with Copy(client, pool).running() as copy, scheduler(pool) as running:
                await until_bound(pool, running, 1)
                await asyncio.to_thread(plane.restart_api_server)
                await pool.create_pod("after", schedulerName="another")
                await copy.has("after", *names)
                await bound(pool, *names)
            # A restarted server has forgotten old versions, and says so in its own way.
            stale = Copy(client, pool)
            stale.reflector._version, stale.reflector._must_list = "1", False
            async with stale.running():
                assert stale.names == ["after", *names]
            on_nodes = Counter(pod.spec.node_name for pod in await pods_of(pool))
            assert max(on_nodes[node] for node in pool.nodes) <= 4
    finally:
        plane.stop()
