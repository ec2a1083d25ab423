"""A stand-in for Kubeflow's training operator: it creates the pods of a TFJob and replaces those
that are deleted. It does nothing else."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import PODS
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.views.manifest_pods import manifest_objects
from tests.kubernetes.custom_resources import definition, install

TFJOB_CRD = definition("kubeflow.org", "TFJob", version="v1")


class TrainingOperator:
    """The operator of one TFJob in the namespace `default`. Runs until the block ends."""

    def __init__(self, api: ApiClient, file: Path) -> None:
        self._api = api
        self._file = file
        self._pods: dict[str, dict[str, Any]] = {}
        self._lost: asyncio.Queue[str] = asyncio.Queue()
        self._work: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "TrainingOperator":
        await install(self._api, TFJOB_CRD)
        job = yaml.safe_load(self._file.read_text())
        path = "/apis/kubeflow.org/v1/namespaces/default/tfjobs"
        created = msgspec.json.decode(await self._api.request("POST", path, job))
        owner = {
            "apiVersion": job["apiVersion"],
            "kind": "TFJob",
            "name": job["metadata"]["name"],
            "uid": created["metadata"]["uid"],
            "controller": True,
        }
        for template in manifest_objects(self._file.read_bytes(), "default").templates:
            for name in template.names:
                metadata = {**template.pod["metadata"], "name": name, "ownerReferences": [owner]}
                self._pods[name] = {"metadata": metadata, "spec": template.pod["spec"]}
        for pod in self._pods.values():
            await self._api.create(PODS, pod, "default")
        reflector = Reflector(self._api, PODS, self._on_changes, Selection(namespace="default"))
        self._work = [asyncio.create_task(reflector.run()), asyncio.create_task(self._replace())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    @property
    def names(self) -> list[str]:
        return list(self._pods)

    def _on_changes(self, changes: list[Change[KubePod]]) -> None:
        for before, after in changes:
            if after is None and before is not None and before.metadata.name in self._pods:
                self._lost.put_nowait(before.metadata.name)

    async def _replace(self) -> None:
        while True:
            name = await self._lost.get()
            with suppress(ApiStatusError):
                await self._api.create(PODS, self._pods[name], "default")
