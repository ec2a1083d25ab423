"""A Kubernetes cluster for the benchmarks: a real API server, nodes and pods, and a watch that
notes when pods are bound."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kubernetes.binaries import CONTROL_PLANE, KWOK, built
from tests.kubernetes.control_plane import ApiServer, ControlPlane, start_kwok
from tests.kubernetes.pool import KUBELET

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import NAMESPACES, NODES, PODS, Resource
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.objects.pod import KubePod

NAMESPACE = "bench"
GPU = "nvidia.com/gpu"
#: Requests that are under way at once while objects are created.
_CREATORS = 32
#: Longer than any benchmark waits for one condition.
PATIENCE_S = 600.0


class KubeCluster:
    def __init__(self, address: ApiServer, client: ApiClient) -> None:
        self.address = address
        self.client = client

    async def create(self, resource: Resource[Any], bodies: Iterable[Any]) -> None:
        """Create objects, in this order as far as several connections keep it."""
        rest = iter(bodies)
        namespace = NAMESPACE if resource.is_namespaced else ""

        async def creator() -> None:
            for body in rest:
                await self.client.request("POST", resource.path(namespace), body)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CREATORS):
                group.create_task(creator())

    async def add_nodes(self, count: int, gpus: int, *, kubelet: str = "kwok") -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
        await self.create(
            NODES,
            (
                {
                    "metadata": {"name": f"node-{number}", "labels": {KUBELET: kubelet}},
                    "status": {"allocatable": amounts, "capacity": amounts},
                }
                for number in range(count)
            ),
        )

    async def remove(self, resource: Resource[Any]) -> None:
        """Delete all objects of a kind at once, and return when they are gone."""
        namespace = NAMESPACE if resource.is_namespaced else ""
        path = resource.path(namespace)
        async with asyncio.timeout(PATIENCE_S):
            await self.client.request("DELETE", path, params={"gracePeriodSeconds": 0})
            while (await self.client.page(resource, {"limit": 1}, namespace)).items:
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def watching(self, labels: str = "") -> AsyncIterator["BindTimes"]:
        """Note in the block when pods with these labels are bound."""
        times = BindTimes()
        selection = Selection(NAMESPACE, labels, fields="spec.nodeName!=")
        reflector = Reflector(self.client, PODS, times.take, selection)
        task = asyncio.create_task(reflector.run())
        try:
            await reflector.synced.wait()
            yield times
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class BindTimes:
    """When pods were bound, as a watch of bound pods shows it."""

    def __init__(self) -> None:
        self.bound: list[float] = []
        self._grown = asyncio.Event()

    def take(self, changes: list[Change[KubePod]]) -> None:
        now = time.perf_counter()
        self.bound += [now for change in changes if change.before is None]
        self._grown.set()

    async def until(self, count: int, within_s: float = PATIENCE_S) -> bool:
        """Return when this many pods have been bound; False if that takes too long."""
        try:
            async with asyncio.timeout(within_s):
                while len(self.bound) < count:
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True

    async def until_quiet(self, seconds: float) -> None:
        """Return when no pod has been bound for this long."""
        count = -1
        while count < len(self.bound):
            count = len(self.bound)
            await asyncio.sleep(seconds)


def pod(name: str, scheduler: str, gpus: int = 1, **fields: Any) -> dict[str, Any]:
    """A pod with one container. `labels` and `annotations` are metadata, all else is its spec."""
    amounts = {GPU: str(gpus), "cpu": "1", "memory": "1Gi"}
    container = {
        "name": "main",
        "image": "simulated",
        "resources": {"requests": amounts, "limits": {GPU: str(gpus)}},
    }
    metadata = {key: fields.pop(key) for key in ("labels", "annotations") if key in fields}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"schedulerName": scheduler, "containers": [container], **fields},
    }


@asynccontextmanager
async def kube_cluster(folder: Path, *, has_kwok: bool = True) -> AsyncIterator[KubeCluster]:
    """Run a control plane and KWOK in the block."""
    binary, kwok_binary = built(CONTROL_PLANE, print), built(KWOK, print)
    folder.mkdir()
    plane = await asyncio.to_thread(ControlPlane, binary, folder / "control-plane")
    kwok = start_kwok(kwok_binary, plane.address, folder) if has_kwok else None
    try:
        connection = find_connection(plane.address.kubeconfig)
        async with ApiClient(connection, timeout_s=PATIENCE_S) as client:
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            yield KubeCluster(plane.address, client)
    finally:
        if kwok is not None:
            kwok.kill()
        plane.stop()
