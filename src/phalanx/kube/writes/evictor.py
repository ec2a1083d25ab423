"""Evictions of pods, and what is written on pods before: marks, nominations, annotations."""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import structlog

from phalanx.kube.api.client import ApiClient, PatchKind
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import PODS
from phalanx.kube.api.retries import Retries
from phalanx.kube.objects.metadata import timestamp
from phalanx.kube.writes.binder import CONCURRENCY
from phalanx.kube.writes.calls import Bind, PodReference

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EvictResult(StrEnum):
    EVICTED = "evicted"
    GONE = "gone"
    REFUSED = "refused"  #: the API server does not allow it
    UNNEEDED = "unneeded"  #: the preemptor has started or is gone
    UNKNOWN = "unknown"  #: this scheduler stopped leading


class Evictor:
    def __init__(self, client: ApiClient, may_act: Callable[[], bool]) -> None:
        self._client = client
        self._may_act = may_act
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def evict(
        self,
        pod: PodReference,
        reason: str,
        message: str,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> EvictResult:
        """Evict a pod, and give its condition `DisruptionTarget` our reason. Tries again while a
        budget does not allow it, as long as it is needed."""
        retries = Retries()
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = PODS.path(pod.namespace, pod.name, "eviction")
        while self._may_act():
            if not is_needed():
                return EvictResult.UNNEEDED
            try:
                async with self._slots:
                    await self._client.request("POST", path, body)
            except ApiStatusError as error:
                if error.code in (404, 409):
                    return EvictResult.GONE
                if error.code != 429 and error.code < 500:
                    log.warning("eviction refused", pod=pod.name, reason=error.message)
                    return EvictResult.REFUSED
                await retries.pause(error.retry_after_s)
            except ApiUnreachableError:
                await retries.pause()
            else:
                # The eviction has written a reason of its own.
                await self._patch(pod, _disruption_target(reason, message))
                return EvictResult.EVICTED
        return EvictResult.UNKNOWN

    async def nominate(self, nomination: Bind) -> None:
        await self._patch(nomination.pod, {"status": {"nominatedNodeName": nomination.node}})

    async def clear_nomination(self, pod: PodReference) -> None:
        await self._patch(pod, {"status": {"nominatedNodeName": None}})

    async def annotate(self, pod: PodReference, annotations: Mapping[str, str | None]) -> bool:
        """Set annotations, or remove those that are None; False if that failed and the pod is
        still there."""
        return await self._patch(pod, {"metadata": {"annotations": dict(annotations)}})

    async def _patch(self, pod: PodReference, body: dict[str, Any]) -> bool:
        """Patch the pod through its status, which is all that the scheduler may write. False if
        that failed and the pod is still there."""
        if not self._may_act():
            return False
        metadata = {**body.get("metadata", {}), "uid": pod.uid}
        path = PODS.path(pod.namespace, pod.name, "status")
        try:
            async with self._slots:
                patch = {**body, "metadata": metadata}
                await self._client.patch(path, patch, PatchKind.STRATEGIC)
        except (ApiStatusError, ApiUnreachableError) as error:
            log.info("pod not patched", pod=pod.name, reason=str(error))
            return isinstance(error, ApiStatusError) and error.code in (404, 409)
        return True


def _disruption_target(reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    condition |= {"message": message, "lastTransitionTime": timestamp()}
    return {"status": {"conditions": [condition]}}
