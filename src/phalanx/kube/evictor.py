"""Evictions: victims are marked, then evicted one by one until all of them are on their way out.

Marks and nominations are on the pods, so that a scheduler that starts in between goes on where
this one ended.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import structlog

from phalanx.kube.binder import CONCURRENCY
from phalanx.kube.calls import Bind, EvictPod, PodReference, Preempt
from phalanx.kube.client import ApiClient, PatchKind
from phalanx.kube.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.gang_translation import PREEMPTED_BY
from phalanx.kube.objects.metadata import timestamp
from phalanx.kube.resources import PODS
from phalanx.kube.retries import Retries

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EvictResult(StrEnum):
    EVICTED = "evicted"
    GONE = "gone"
    REFUSED = "refused"  #: the API server does not allow it, now or ever
    UNKNOWN = "unknown"  #: this scheduler stopped leading


class Evictor:
    def __init__(self, client: ApiClient, may_act: Callable[[], bool]) -> None:
        self._client = client
        self._may_act = may_act
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def preempt(self, call: Preempt) -> list[EvictResult]:
        """Nominate nodes, mark all victims, then evict them, pods with budgets first."""
        await asyncio.gather(*(self._nominate(each) for each in call.nominations))
        await asyncio.gather(*(self._mark(each) for each in call.victims))
        with_budget = [each for each in call.victims if each.has_budget]
        others = [each for each in call.victims if not each.has_budget]
        return [*await self._evict_all(with_budget), *await self._evict_all(others)]

    async def evict(self, pod: PodReference, reason: str, message: str) -> EvictResult:
        """Evict a pod, and give its condition `DisruptionTarget` our reason."""
        retries = Retries()
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = PODS.path(pod.namespace, pod.name, "eviction")
        while self._may_act():
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

    async def _evict_all(self, victims: Iterable[EvictPod]) -> list[EvictResult]:
        return await asyncio.gather(
            *(
                self.evict(each.pod, "PreemptionByScheduler", f"preempted by gang {each.preemptor}")
                for each in victims
            )
        )

    async def _nominate(self, nomination: Bind) -> None:
        await self._patch(nomination.pod, {"status": {"nominatedNodeName": nomination.node}})

    async def _mark(self, victim: EvictPod) -> None:
        await self.annotate(victim.pod, {PREEMPTED_BY: victim.preemptor})

    async def annotate(self, pod: PodReference, annotations: dict[str, str]) -> None:
        await self._patch(pod, {"metadata": {"annotations": annotations}})

    async def _patch(self, pod: PodReference, body: dict[str, Any]) -> None:
        """Patch the pod through its status, which is all that the scheduler may write."""
        metadata = {**body.get("metadata", {}), "uid": pod.uid}
        path = PODS.path(pod.namespace, pod.name, "status")
        try:
            async with self._slots:
                patch = {**body, "metadata": metadata}
                await self._client.patch(path, patch, PatchKind.STRATEGIC)
        except (ApiStatusError, ApiUnreachableError) as error:
            # Without it a restarted scheduler decides anew; nothing else depends on it.
            log.info("pod not marked", pod=pod.name, reason=str(error))


def _disruption_target(reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    condition |= {"message": message, "lastTransitionTime": timestamp()}
    return {"status": {"conditions": [condition]}}
