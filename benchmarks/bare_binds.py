"""`python -m benchmarks.bare_binds KUBECONFIG NAMESPACE`: one bind call for every pod, and nothing
else. No scheduler can be faster than this."""

import asyncio
import sys
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

import uvloop

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import NODES, PODS
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.writes.binder import CONCURRENCY


async def bind_all(kubeconfig: Path, namespace: str) -> None:
    """Bind every pod of the namespace to a node, all nodes in turn."""
    async with ApiClient(find_connection(kubeconfig)) as client:
        pods = [pod.metadata.name for pod in await client.list_all(PODS, None, namespace)]
        nodes = [node.metadata.name for node in await client.list_all(NODES)]
        await bind(client, namespace, zip(pods, cycle(nodes), strict=False))


async def bind(client: ApiClient, namespace: str, binds: Iterable[tuple[str, str]]) -> None:
    """Bind pods to nodes, as many at once as the scheduler does."""
    rest = iter(binds)

    async def binder() -> None:
        for pod, node in rest:
            body = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
            await client.request("POST", PODS.path(namespace, pod, "binding"), body)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(binder())


if __name__ == "__main__":
    uvloop.run(bind_all(Path(sys.argv[1]), sys.argv[2]))
