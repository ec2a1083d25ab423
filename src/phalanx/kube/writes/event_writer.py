"""Events about pods and PodGroups, written after everything else and within a budget. When there
are more than can be written, the oldest are dropped."""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import structlog

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.objects.metadata import ObjectReference, timestamp
from phalanx.kube.writes.write_budget import WriteBudget

#: Events that wait to be written.
_WAITING = 20_000
#: The longest message that an event may have.
_MESSAGE = 1000

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class _Event(NamedTuple):
    target: ObjectReference
    type: EventType
    reason: str
    message: str
    at: str


class EventWriter:
    def __init__(self, client: ApiClient, may_act: Callable[[], bool], budget: WriteBudget) -> None:
        self.dropped = 0
        self._client = client
        self._may_act = may_act
        self._budget = budget
        self._waiting: deque[_Event] = deque()
        self._has_work = asyncio.Event()

    def warn(self, target: ObjectReference, reason: str, message: str) -> None:
        self._put(_Event(target, EventType.WARNING, reason, message, timestamp()))

    def note(self, target: ObjectReference, reason: str, message: str) -> None:
        self._put(_Event(target, EventType.NORMAL, reason, message, timestamp()))

    def _put(self, event: _Event) -> None:
        if len(self._waiting) >= _WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(event)
        self._has_work.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._has_work.wait()
            if not self._waiting:
                self._has_work.clear()
                continue
            await self._budget.take(is_event=True)
            if self._waiting:
                event = self._waiting.popleft()
                if self._may_act():
                    await self._write(event)

    async def _write(self, event: _Event) -> None:
        target = event.target
        # Events about objects without a namespace are in the default one.
        namespace = target.namespace or "default"
        body = {
            "metadata": {"generateName": f"{target.name[:200]}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": target.api_version,
                "kind": target.kind,
                "namespace": target.namespace,
                "name": target.name,
                "uid": target.uid,
            },
            "reason": event.reason,
            "message": event.message[:_MESSAGE],
            "type": event.type,
            "firstTimestamp": event.at,
            "lastTimestamp": event.at,
            "count": 1,
            "source": {"component": "phalanx"},
            "reportingComponent": "phalanx",
        }
        path = f"/api/v1/namespaces/{namespace}/events"
        try:
            await self._client.request("POST", path, body)
        except (ApiStatusError, ApiUnreachableError) as error:
            if self._budget.note(error):
                self._waiting.appendleft(event)
                return
            log.warning("event not written", object=target.name, reason=str(error))
