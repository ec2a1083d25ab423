"""Our filters say the same as kube-scheduler, on the same API server, for random pods and nodes.

`COMPARED_CASES=3000 COMPARED_SEED=7` compares more, or others.
"""

import asyncio
import os
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.kube.api.resources import (
    CSI_NODES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    Resource,
)
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.pod import KubePod
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.pool import Pool
from tests.kubernetes.random_cases import CaseGenerator, RandomCase

CASES = int(os.environ.get("COMPARED_CASES", "100"))
SEED = int(os.environ.get("COMPARED_SEED", "1"))
#: Cases that are on the API server at the same time.
BATCH = 100
#: Requests that are sent at the same time.
IN_FLIGHT = 16


@pytest.mark.usefixtures("kube_scheduler")
async def test_a_pod_is_feasible_on_the_same_nodes_as_for_kube_scheduler(pool: Pool) -> None:
    numbers = count()
    compared = placed = 0
    while compared < CASES:
        size = min(BATCH, CASES - compared)
        comparison = Comparison(pool, [next(numbers) for _ in range(size)])
        placed += await comparison.run()
        compared += size
    # A comparison in which every pod fits, or none, would show nothing.
    assert compared // 10 < placed < compared * 9 // 10


class Comparison:
    """Some cases on one API server."""

    def __init__(self, pool: Pool, numbers: list[int]) -> None:
        self._pool, self._api = pool, pool.api
        prefix = pool.namespace.removeprefix("t-")
        self._cases = {n: CaseGenerator(SEED, prefix, n).case() for n in numbers}
        self._expected: dict[int, set[str]] = {}
        self._lists: dict[str, list[Any]] = {}

    async def run(self) -> int:
        """Compare; the number of pods that kube-scheduler has placed."""
        try:
            await self._create()
            await self._sentinel()
            await self._create_probes()
            for number, case in self._cases.items():
                self._expected[number] = await self._feasible(case)
            return await self._compare()
        finally:
            await self._clean_up()

    async def _create(self) -> None:
        namespace, cases = self._pool.namespace, self._cases.values()
        for volume in (volume for case in cases for volume in case.volumes):
            volume["spec"]["claimRef"]["namespace"] = namespace
        await self._create_all(NODES, [each for case in cases for each in case.nodes])
        await self._create_all(CSI_NODES, [each for case in cases for each in case.csi_nodes])
        await self._create_all(
            PERSISTENT_VOLUMES, [each for case in cases for each in case.volumes]
        )
        claims = [each for case in cases for each in case.claims]
        await self._create_all(PERSISTENT_VOLUME_CLAIMS, claims)
        await self._create_all(PODS, [each for case in cases for each in case.placed])
        for name in (name for case in cases for name in case.leaving):
            await self._api.delete(PODS, name, namespace)

    async def _create_all(self, resource: Resource[Any], bodies: Iterable[dict[str, Any]]) -> None:
        limit = asyncio.Semaphore(IN_FLIGHT)
        namespace = self._pool.namespace if resource.is_namespaced else ""

        async def create(body: dict[str, Any]) -> None:
            async with limit:
                await self._api.create(resource, body, namespace)

        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(create(body))

    async def _sentinel(self) -> None:
        """Wait until kube-scheduler has seen all nodes and pods: it has placed a later one."""
        [node] = await self._pool.add_nodes(1, labels={"sentinel": self._pool.namespace})
        name = f"sentinel-{node}"
        selector = {"kubernetes.io/hostname": node}
        await self._pool.create_pod(name, schedulerName="default-scheduler", nodeSelector=selector)

        async def is_bound() -> bool:
            return bool((await self._pool.read_pod(name)).spec.node_name)

        await eventually(is_bound, PATIENCE_S)

    async def _create_probes(self) -> None:
        await self._create_all(PODS, [case.probe for case in self._cases.values()])

    async def _feasible(self, case: RandomCase) -> set[str]:
        """The nodes that our filters allow for the probe of a case."""
        model = ClusterModel(("default-scheduler",))
        names = {node["metadata"]["name"] for node in case.nodes}
        for node in self._objects(await self._list(NODES), names):
            model.put_node(node)
        for csi_node in self._objects(await self._list(CSI_NODES), names):
            model.put_csi_node(csi_node)
        volumes = {each["metadata"]["name"] for each in case.volumes}
        for volume in self._objects(await self._list(PERSISTENT_VOLUMES), volumes):
            model.put_volume(volume)
        claims = {each["metadata"]["name"] for each in case.claims}
        for claim in self._objects(await self._list(PERSISTENT_VOLUME_CLAIMS), claims):
            model.put_claim(claim)
        pods = {each["metadata"]["name"] for each in case.placed}
        for pod in self._objects(await self._list(PODS), pods):
            model.put_pod(pod)
        probe_name = case.probe["metadata"]["name"]
        [probe] = self._objects(await self._list(PODS), {probe_name})
        return feasible_nodes(model, probe)

    async def _list(self, resource: Resource[Any]) -> list[Any]:
        """All objects of a kind, listed once."""
        if resource.plural not in self._lists:
            self._lists[resource.plural] = await self._api.list_all(resource)
        return self._lists[resource.plural]

    @staticmethod
    def _objects(listed: Iterable[Any], names: set[str]) -> list[Any]:
        return [each for each in listed if each.metadata.name in names]

    async def _compare(self) -> int:
        """Wait until kube-scheduler has judged every probe as we do."""
        differences: list[str] = []
        placed = 0

        async def agree() -> bool:
            nonlocal differences, placed
            pods = await self._api.list_all(PODS, namespace=self._pool.namespace)
            by_name = {pod.metadata.name: pod for pod in pods}
            differences, placed = [], 0
            for number, case in self._cases.items():
                probe = by_name[case.probe["metadata"]["name"]]
                placed += bool(probe.spec.node_name)
                if (difference := self._difference(number, probe)) is not None:
                    differences.append(difference)
            return not differences

        await eventually(agree, PATIENCE_S, lambda: "\n".join(differences[:20]))
        return placed

    def _difference(self, number: int, probe: KubePod) -> str | None:
        expected = self._expected[number]
        if probe.spec.node_name:
            if probe.spec.node_name in expected:
                return None
            return f"case {number}: kube-scheduler chose {probe.spec.node_name}, we {expected}"
        refused = [each.message for each in probe.status.conditions if each.type == "PodScheduled"]
        if not refused:
            return f"case {number}: kube-scheduler has not judged it"
        return f"case {number}: {refused}, but we allow {expected}" if expected else None

    async def _clean_up(self) -> None:
        pods = PODS.path(self._pool.namespace)
        await self._api.request("DELETE", pods, params={"gracePeriodSeconds": 0})
        selector = {"labelSelector": f"pool-{self._pool.namespace.removeprefix('t-')}"}
        for resource in (NODES, CSI_NODES, PERSISTENT_VOLUMES):
            await self._api.request("DELETE", resource.path(), params=selector)


def feasible_nodes(model: ClusterModel, probe: KubePod) -> set[str]:
    """The nodes on which the planner would place a pod, judged as it was before it was bound."""
    probe = without_bind(probe)
    model.put_pod(probe)
    model.refresh()
    moment = model.state.at(0)
    [gang] = moment.pending.gangs.values()
    if gang.ineligible is not None:
        return set()
    request = gang.roles[0].request
    fits = moment.present.fit(request).counts > 0
    restriction = moment.present.restriction(request)
    if restriction is not None and restriction.nodes is not None:
        fits = fits & restriction.nodes
    return {name for name, at in moment.table.index.items() if fits[at]}


def without_bind(pod: KubePod) -> KubePod:
    return replace(
        pod,
        spec=replace(pod.spec, node_name=""),
        status=replace(pod.status, conditions=()),
    )
