"""A namespace and nodes of a test's own, on the API server that all tests share."""

from typing import Any

from phalanx.kube.api.client import ApiClient, PatchKind
from phalanx.kube.api.resources import NAMESPACES, NODES, PODS
from phalanx.kube.objects.pod import KubePod

#: The label that keeps the nodes of one test from the pods of another.
POOL = "phalanx.test/pool"
#: Who plays the node's kubelet: `kwok`, `python` or, without the label, no process.
KUBELET = "phalanx.test/kubelet"


class Pool:
    def __init__(self, api: ApiClient, name: str) -> None:
        self.api = api
        self.namespace = name
        self.nodes: list[str] = []

    async def open(self) -> None:
        await self.api.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def close(self) -> None:
        """Remove pods and nodes at once. Without its controller the namespace stays, empty."""
        params = {"gracePeriodSeconds": 0}
        await self.api.request("DELETE", PODS.path(self.namespace), params=params)
        selector = {"labelSelector": f"{POOL}={self.namespace}"}
        await self.api.request("DELETE", NODES.path(), params=selector)
        await self.api.delete(NAMESPACES, self.namespace)

    async def add_nodes(
        self,
        count: int,
        resources: dict[str, str] | None = None,
        *,
        kubelet: str = "",
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
    ) -> list[str]:
        """Nodes with the given allocatable resources, by default 8 CPUs and 8 GPUs."""
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}
        amounts.update(resources or {})
        known = {POOL: self.namespace, **({KUBELET: kubelet} if kubelet else {}), **(labels or {})}
        added = []
        for _ in range(count):
            name = f"{self.namespace}-{len(self.nodes)}"
            node = {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **known}},
                "spec": {"taints": taints or []},
                "status": {"allocatable": amounts, "capacity": amounts},
            }
            await self.api.create(NODES, node)
            self.nodes.append(name)
            added.append(name)
        return added

    async def create_pod(self, name: str, /, **fields: Any) -> KubePod:
        return await self.api.create(PODS, self.pod(name, **fields), self.namespace)

    def pod(
        self,
        name: str,
        *,
        requests: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        finalizers: list[str] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """A pod of a scheduler of this pool, that only its nodes can run."""
        resources = {"requests": requests or {}, "limits": _limits(requests or {})}
        container = {"name": "main", "image": "simulated", "resources": resources}
        return {
            "metadata": {
                "name": name,
                "labels": labels or {},
                "annotations": annotations or {},
                "finalizers": finalizers or [],
            },
            "spec": {
                "schedulerName": self.namespace,
                "nodeSelector": {POOL: self.namespace},
                "containers": [container],
                **spec,
            },
        }

    async def bind(
        self, pod: KubePod, node: str, annotations: dict[str, str] | None = None
    ) -> None:
        metadata = {"name": pod.metadata.name, "uid": pod.metadata.uid}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**metadata, "annotations": annotations or {}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.api.request(
            "POST", PODS.path(self.namespace, pod.metadata.name, "binding"), binding
        )

    async def annotate(self, name: str, annotations: dict[str, str | None]) -> None:
        body = {"metadata": {"annotations": annotations}}
        await self.api.patch(PODS.path(self.namespace, name), body)

    async def set_status(self, name: str, status: dict[str, Any]) -> None:
        path = PODS.path(self.namespace, name, "status")
        await self.api.patch(path, {"status": status}, PatchKind.STRATEGIC)

    async def read_pod(self, name: str) -> KubePod:
        return await self.api.get(PODS, name, self.namespace)


def _limits(requests: dict[str, str]) -> dict[str, str]:
    """Extended resources need a limit that equals the request."""
    return {name: amount for name, amount in requests.items() if "/" in name}
