"""Binds of pods to nodes, and what each answer of the API server means.

A bind without an answer may have had its effect. The pod is then read until the outcome is known;
another node is never tried before that.
"""

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import structlog
from prometheus_client import Histogram

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import PODS
from phalanx.kube.api.retries import Retries
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.calls import Bind, PodReference
from phalanx.kube.writes.rounds import ROUND, BindRound

#: Requests that are under way at once. More do not make an API server faster.
CONCURRENCY = 32
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BindResult(StrEnum):
    BOUND = "bound"
    ELSEWHERE = "elsewhere"  #: another scheduler has bound the pod to another node
    GONE = "gone"  #: the pod was deleted, or replaced by another of the same name
    REFUSED = "refused"  #: the pod is as it was, and stays pending
    UNKNOWN = "unknown"  #: this scheduler stopped leading before the outcome was known


class BindOutcome(NamedTuple):
    bind: Bind
    result: BindResult
    message: str = ""


class Binder:
    def __init__(self, client: ApiClient, may_act: Callable[[], bool]) -> None:
        self.seconds = Histogram(
            "phalanx_kube_bind_seconds",
            "From the decision to bind a pod until the outcome is known.",
            buckets=_BUCKETS_S,
            registry=None,
        )
        self._client = client
        self._may_act = may_act
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def bind(self, bind: Bind, bind_round: BindRound) -> BindOutcome:
        """Bind one pod, and return when the outcome is known, or this scheduler no longer leads."""
        began = time.monotonic()
        outcome = await self._bind(bind, bind_round)
        self.seconds.observe(time.monotonic() - began)
        return outcome

    async def _bind(self, bind: Bind, bind_round: BindRound) -> BindOutcome:
        retries = Retries()
        while self._may_act():
            try:
                async with self._slots:
                    await self._send(bind, bind_round)
            except ApiStatusError as error:
                if error.code == 429:
                    await retries.pause(error.retry_after_s)
                    continue
                if error.code in (404, 409) or error.code >= 500:
                    outcome = await self._outcome(bind, error)
                else:
                    outcome = BindOutcome(bind, BindResult.REFUSED, error.message)
            except ApiUnreachableError as error:
                outcome = await self._outcome(bind, error)
            else:
                return BindOutcome(bind, BindResult.BOUND)
            if outcome is not None:
                return outcome
            await retries.pause()
        return BindOutcome(bind, BindResult.UNKNOWN, "stopped leading")

    async def _send(self, bind: Bind, bind_round: BindRound) -> None:
        pod = bind.pod
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": {ROUND: str(bind_round)},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
        await self._client.request("POST", PODS.path(pod.namespace, pod.name, "binding"), body)

    async def _outcome(self, bind: Bind, error: Exception) -> BindOutcome | None:
        """What became of the pod; None if the same bind has to be sent again."""
        pod = await self._read(bind.pod)
        if pod is None or pod.metadata.uid != bind.pod.uid:
            return BindOutcome(bind, BindResult.GONE, str(error))
        if pod.spec.node_name == bind.node:
            return BindOutcome(bind, BindResult.BOUND)
        if pod.spec.node_name:
            message = f"another scheduler has bound the pod to {pod.spec.node_name}"
            return BindOutcome(bind, BindResult.ELSEWHERE, message)
        if pod.is_terminating:
            return BindOutcome(bind, BindResult.GONE, str(error))
        if isinstance(error, ApiStatusError) and error.code in (404, 409):
            return BindOutcome(bind, BindResult.REFUSED, error.message)
        return None

    async def _read(self, reference: PodReference) -> KubePod | None:
        """The pod as it is now; None if there is none. Asks until there is an answer."""
        retries = Retries()
        while True:
            try:
                async with self._slots:
                    return await self._client.get(PODS, reference.name, reference.namespace)
            except ApiStatusError as error:
                if error.is_not_found:
                    return None
                log.warning("pod not read", pod=reference.name, reason=str(error))
                await retries.pause(error.retry_after_s)
            except ApiUnreachableError as error:
                log.warning("pod not read", pod=reference.name, reason=str(error))
                await retries.pause()
