"""Events that the scheduler has written about pods."""

from collections.abc import Collection
from datetime import datetime

import msgspec

from phalanx.kube.client import ApiClient
from phalanx.kube.objects.metadata import ApiObject, ApiStruct
from phalanx.kube.resources import Resource

#: At most this many are shown.
_MOST = 5


class _InvolvedObject(ApiStruct, frozen=True):
    uid: str = ""


class _Event(ApiObject, frozen=True):
    involved_object: _InvolvedObject = _InvolvedObject()
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None


_EVENTS = Resource("", "v1", "events", _Event)


class PodEvent(msgspec.Struct, frozen=True):
    """Equal events of several pods."""

    at: str  #: the last of them
    reason: str
    message: str
    pods: int


async def pod_events(client: ApiClient, namespace: str, uids: Collection[str]) -> list[PodEvent]:
    """The last events about these pods, the newest last."""
    params = {"fieldSelector": "reportingComponent=phalanx"}
    groups: dict[tuple[str, str], list[_Event]] = {}
    for event in await client.list_all(_EVENTS, params, namespace):
        if event.involved_object.uid in uids and event.last_timestamp is not None:
            groups.setdefault((event.reason, event.message), []).append(event)
    found = []
    for (reason, message), events in groups.items():
        last = max(event.last_timestamp for event in events if event.last_timestamp is not None)
        pods = len({event.involved_object.uid for event in events})
        found.append(PodEvent(last.isoformat(), reason, message, pods))
    found.sort(key=lambda event: event.at)
    return found[-_MOST:]
