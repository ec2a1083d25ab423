"""Warnings that the scheduler has written about pods."""

import re
from collections.abc import Collection
from datetime import datetime

import msgspec

from phalanx.core.text import plural
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import Resource
from phalanx.kube.objects.metadata import ApiObject, ApiStruct

_NUMBER = re.compile(r"(?<![\w-])\d+(?![\w-])")
#: What one pod has lost, at the end of the event of its eviction.
_LOST = re.compile(r"; this pod lost (\d+) GPU-seconds? of work$")
#: At most this many are shown.
_MOST = 5


class _InvolvedObject(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""


class _Event(ApiObject, frozen=True):
    involved_object: _InvolvedObject = _InvolvedObject()
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None


_EVENTS = Resource("", "v1", "events", _Event)


class PodEvent(msgspec.Struct, frozen=True):
    """Events of several pods that differ only in numbers. What each pod lost is summed."""

    at: str  #: the last of them
    reason: str
    message: str
    pods: int


async def pod_events(client: ApiClient, namespace: str, names: Collection[str]) -> list[PodEvent]:
    """The last events about pods with these names, the newest last; also about earlier pods that a
    controller has replaced."""
    params = {"fieldSelector": "reportingComponent=phalanx,type=Warning"}
    groups: dict[tuple[str, str], list[_Event]] = {}
    for event in await client.list_all(_EVENTS, params, namespace):
        about = event.involved_object
        if about.kind == "Pod" and about.name in names and event.last_timestamp is not None:
            alike = _NUMBER.sub("#", _LOST.sub("", event.message))
            groups.setdefault((event.reason, alike), []).append(event)
    found = []
    for (reason, _), events in groups.items():
        last = max(event.last_timestamp for event in events if event.last_timestamp is not None)
        message = _LOST.sub("", events[-1].message)
        lost = sum(int(part[1]) for event in events if (part := _LOST.search(event.message)))
        message += f"; {plural(lost, 'GPU-second')} of work lost in total" if lost else ""
        pods = len({event.involved_object.name for event in events})
        found.append(PodEvent(last.isoformat(), reason, message, pods))
    found.sort(key=lambda event: (event.at, event.reason, event.message))
    return found[-_MOST:]
