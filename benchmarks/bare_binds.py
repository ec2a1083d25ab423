"""`python -m benchmarks.bare_binds KUBECONFIG NAMESPACE`: one bind call for every pod, and nothing
else. No scheduler can be faster than this."""

import asyncio
import sys
from itertools import cycle
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import NODES, PODS
from phalanx.kube.connection.cluster_connection import tls_context
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.writes.binder import CONCURRENCY


async def bind_all(kubeconfig: Path, namespace: str) -> None:
    """Bind every pod of the namespace to a node, all nodes in turn."""
    connection = find_connection(kubeconfig)
    async with ApiClient(connection) as client:
        pods = await client.list_all(PODS, None, namespace)
        nodes = await client.list_all(NODES)
    credential = await connection.credentials.current()
    connector = aiohttp.TCPConnector(limit=0, ssl=tls_context(connection, credential))
    headers = {"Authorization": credential.authorization, "Content-Type": "application/json"}
    work = iter(list(zip(pods, cycle(nodes), strict=False)))
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def bind() -> None:
            for pod, node in work:
                path = PODS.path(namespace, pod.metadata.name, "binding")
                body = {
                    "metadata": {"name": pod.metadata.name},
                    "target": {"kind": "Node", "name": node.metadata.name},
                }
                data = msgspec.json.encode(body)
                async with session.post(connection.server + path, data=data) as answer:
                    await answer.read()
                    answer.raise_for_status()

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(bind())


if __name__ == "__main__":
    uvloop.run(bind_all(Path(sys.argv[1]), sys.argv[2]))
