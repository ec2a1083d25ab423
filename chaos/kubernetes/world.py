"""A small cluster on an API server: nodes that come and go, kubelets, and a controller that
replaces the pods of gangs."""

import asyncio
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.pool import KUBELET, POOL, Pool

from chaos.kubernetes.checker import ApiHistory
from chaos.kubernetes.gangs import GPU, PRIORITIES, WantedGang, gang_of
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import NODES, PODS, PRIORITY_CLASSES
from phalanx.kube.objects.pod import KubePod

_NODE_GPUS = 4
_RECONCILE_S = 0.1


class KubeWorld:
    def __init__(self, pool: Pool, nodes: int, partial_s: float, chance: random.Random) -> None:
        self.pool = pool
        self.wanted: dict[str, WantedGang] = {}
        self.nodes = [f"{pool.namespace}-{number}" for number in range(nodes)]
        self.up: set[str] = set()
        self.history = ApiHistory(dict.fromkeys(self.nodes, _NODE_GPUS), partial_s)
        self._chance = chance  #: for how long kubelets take
        self._owner: dict[str, Any] = {}
        self._changed = asyncio.Event()
        self._reflector = Reflector(
            pool.api, PODS, self._on_changes, Selection(namespace=pool.namespace)
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        api = self.pool.api
        for name, value in PRIORITIES.items():
            body = {"metadata": {"name": f"{self.pool.namespace}-{name}"}, "value": value}
            await api.create(PRIORITY_CLASSES, body)
        path = f"/api/v1/namespaces/{self.pool.namespace}/configmaps"
        made = msgspec.json.decode(await api.request("POST", path, {"metadata": {"name": "c"}}))
        kind = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True}
        self._owner = kind | {"name": "c", "uid": made["metadata"]["uid"]}
        for node in self.nodes:
            await self.add_node(node)
        kubelet = Kubelet(self.pool, lambda _: self._chance.uniform(0, 0.5))
        for work in (kubelet.run(), self._reflector.run(), self._control()):
            self._run(work)
        await self._reflector.synced.wait()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in PRIORITIES:
            await self.pool.api.delete(PRIORITY_CLASSES, f"{self.pool.namespace}-{name}")

    def check(self) -> None:
        """Raise what has ended the kubelets or the controller, and look at gangs bound in part."""
        for task in self._tasks:
            if task.done():
                task.result()
        self.history.check_partial(time.monotonic())

    # Users

    def add_gang(self, gang: WantedGang) -> None:
        self.wanted[gang.name] = gang
        self._changed.set()

    def remove_gang(self, name: str) -> None:
        del self.wanted[name]
        self.history.deleted.add(name)
        self._changed.set()

    async def add_node(self, name: str) -> None:
        amounts = {"cpu": "64", "memory": "64Gi", "pods": "110", GPU: str(_NODE_GPUS)}
        labels = {POOL: self.pool.namespace, KUBELET: "python"}
        await self.pool.api.create(
            NODES,
            {
                "metadata": {"name": name, "labels": labels},
                "status": {"allocatable": amounts, "capacity": amounts},
            },
        )
        self.up.add(name)

    async def remove_node(self, name: str) -> None:
        """Delete the node. Its pods are deleted by the controller, as Kubernetes' garbage
        collector does it."""
        self.up.discard(name)
        await self.pool.api.delete(NODES, name)
        self._changed.set()

    # The controller

    def _on_changes(self, changes: list[Change[KubePod]]) -> None:
        self.history.take(changes, time.monotonic())
        self._changed.set()

    async def _control(self) -> None:
        """Create missing pods, and delete those that are finished, lost or not wanted."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            pods = {pod.metadata.name: pod for pod in self.history.pods.values()}
            wanted = {name: gang for gang in self.wanted.values() for name in gang.pods}
            await asyncio.gather(
                *(self._delete(pods[name]) for name in pods if self._must_go(pods[name])),
                *(self._create(name, wanted[name]) for name in wanted.keys() - pods.keys()),
            )
            await asyncio.sleep(_RECONCILE_S)

    def _must_go(self, pod: KubePod) -> bool:
        is_lost = bool(pod.spec.node_name) and pod.spec.node_name not in self.up
        is_unwanted = gang_of(pod) not in self.wanted
        return is_lost or (not pod.is_terminating and (pod.is_finished or is_unwanted))

    async def _create(self, name: str, gang: WantedGang) -> None:
        body = self.pool.pod(name, **gang.fields(self.pool.namespace))
        body["metadata"]["ownerReferences"] = [self._owner]
        try:
            await self.pool.api.create(PODS, body, self.pool.namespace)
        except ApiStatusError as error:
            if not error.is_conflict:  # at a conflict the watch does not show the pod yet
                self._changed.set()

    async def _delete(self, pod: KubePod) -> None:
        has_kubelet = pod.spec.node_name in self.up
        with suppress(ApiStatusError):
            await self.pool.api.delete(
                PODS,
                pod.metadata.name,
                pod.metadata.namespace,
                grace_s=None if has_kubelet else 0,
                uid=pod.metadata.uid,
            )
