"""A small kubelet that refuses pods that do not fit and lets them stop in their grace period.

KWOK accepts every pod, so a scheduler that overcommits a node would not be noticed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from decimal import Decimal
from typing import Any

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import NODES, PODS
from phalanx.kube.objects.cluster import KubeNode
from phalanx.kube.objects.pod import KubePod, Quantities
from tests.kubernetes.pool import KUBELET, POOL, Pool

#: How long a pod takes to stop after its deletion. The result is cut to the pod's grace period.
StopTime = Callable[[KubePod], float]

_UNITS = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(1000),
    "M": Decimal(10**6),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


class Kubelet:
    """Runs the pods of all nodes of a pool that carry the label `phalanx.test/kubelet=python`."""

    def __init__(self, pool: Pool, stop_time: StopTime = lambda _: 0.0) -> None:
        self._pool = pool
        self._api: ApiClient = pool.api
        self._stop_time = stop_time
        self._allocatable: dict[str, Quantities] = {}
        self._admitted: dict[str, KubePod] = {}  #: uid → a pod that has its place on the node
        self._refused: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._pods = Reflector(
            self._api, PODS, self._on_changes, Selection(namespace=pool.namespace)
        )
        labels = f"{POOL}={pool.namespace},{KUBELET}=python"
        self._nodes = Reflector(self._api, NODES, self._on_nodes, Selection(labels=labels))

    async def run(self) -> None:
        nodes = asyncio.create_task(self._nodes.run())
        self._work.add(nodes)
        try:
            await self._nodes.synced.wait()
            await self._pods.run()
        finally:
            for task in self._work:
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)

    def _on_nodes(self, changes: list[Change[KubeNode]]) -> None:
        for before, after in changes:
            if after is not None:
                self._allocatable[after.metadata.name] = after.status.allocatable
                for pod in self._pods.objects.values():
                    if pod.spec.node_name == after.metadata.name:
                        self._on_pod(pod, None)
            elif before is not None:
                del self._allocatable[before.metadata.name]

    def _on_changes(self, changes: list[Change[KubePod]]) -> None:
        for change in changes:
            pod = change.after
            if pod is None:
                if change.before is not None:
                    self._admitted.pop(change.before.metadata.uid, None)
            elif pod.spec.node_name in self._allocatable:
                self._on_pod(pod, change.before)

    def _on_pod(self, pod: KubePod, before: KubePod | None) -> None:
        uid = pod.metadata.uid
        if pod.is_finished:
            self._admitted.pop(uid, None)
        elif uid not in self._admitted and uid not in self._refused:
            self._admit(pod)
        if pod.is_terminating and (before is None or not before.is_terminating):
            self._start(self._stop(pod))

    def _admit(self, pod: KubePod) -> None:
        for resource, available in self._allocatable[pod.spec.node_name].items():
            others = (
                _request(other, resource)
                for other in self._admitted.values()
                if other.spec.node_name == pod.spec.node_name
            )
            if sum(others, _request(pod, resource)) > _number(available):
                self._refused.add(pod.metadata.uid)
                self._start(self._refuse(pod, resource))
                return
        self._admitted[pod.metadata.uid] = pod
        self._start(self._run_pod(pod))

    async def _run_pod(self, pod: KubePod) -> None:
        conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
        await self._write(pod, {"phase": "Running", "conditions": conditions})

    async def _refuse(self, pod: KubePod, resource: str) -> None:
        message = f"Pod was rejected: Node didn't have enough resource: {resource}"
        status = {"phase": "Failed", "reason": f"OutOf{resource}", "message": message}
        await self._write(pod, status)

    async def _stop(self, pod: KubePod) -> None:
        grace_s = pod.metadata.deletion_grace_period_seconds or 0
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(min(self._stop_time(pod), grace_s), over.set)
        await over.wait()
        with suppress(ApiStatusError):
            await self._api.delete(
                PODS,
                pod.metadata.name,
                pod.metadata.namespace,
                grace_s=0,
                uid=pod.metadata.uid,
            )

    async def _write(self, pod: KubePod, status: dict[str, Any]) -> None:
        with suppress(ApiStatusError):  # the pod may be gone
            await self._pool.set_status(pod.metadata.name, status)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _request(pod: KubePod, resource: str) -> Decimal:
    if resource == "pods":
        return Decimal(1)
    amounts = (container.resources.requests.get(resource, "0") for container in pod.spec.containers)
    return sum(map(_number, amounts), Decimal(0))


def _number(quantity: str) -> Decimal:
    digits = quantity.rstrip("kKMGTim")
    return Decimal(digits) * _UNITS[quantity.removeprefix(digits)]
