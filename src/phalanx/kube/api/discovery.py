"""Which APIs the cluster serves, looked up again every 30 seconds."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.retries import Retries
from phalanx.kube.api.transport import WireRequest
from phalanx.kube.connection.errors import ConnectionConfigError

INTERVAL_S = 30.0
#: All groups in one answer; every supported version of Kubernetes has it.
_ACCEPT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ServedResource(NamedTuple):
    """A kind of object, in the version that the cluster prefers."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool
    has_status: bool  #: the status is written to `/status`


class _Subresource(msgspec.Struct, frozen=True):
    subresource: str = ""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Resource(msgspec.Struct, frozen=True, rename="camel"):
    resource: str = ""
    response_kind: _Kind | None = None
    scope: str = ""
    subresources: list[_Subresource] | None = None


class _Version(msgspec.Struct, frozen=True):
    version: str = ""
    resources: list[_Resource] | None = None
    freshness: str = "Current"  #: `Stale`: the server of this group does not answer


class _GroupName(msgspec.Struct, frozen=True):
    name: str = ""


class _Group(msgspec.Struct, frozen=True):
    metadata: _GroupName = _GroupName()
    versions: list[_Version] | None = None


class _Groups(msgspec.Struct, frozen=True):
    items: list[_Group] | None = None


#: (group, plural) → the resource.
Served = dict[tuple[str, str], ServedResource]


class Discovery:
    """The served resources. `on_change` is called in the event loop when they have changed."""

    def __init__(self, client: ApiClient, on_change: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._on_change = on_change
        self._served: Served = {}
        self.synced = asyncio.Event()  #: set once the APIs are known

    def find(self, group: str, plural: str) -> ServedResource | None:
        """The resource, or None if the cluster does not serve it."""
        return self._served.get((group, plural))

    async def refresh(self) -> None:
        """Ask the API server. Raises like `ApiClient.request`."""
        body = await self._client.send(WireRequest("GET", "/apis", accept=_ACCEPT))
        served = _read(body, self._served)
        if served != self._served:
            self._served = served
            self._on_change()
        self.synced.set()

    async def run(self) -> None:
        """Refresh every 30 seconds, until cancelled. A fault is logged and tried again."""
        retries = Retries()
        while True:
            try:
                await self.refresh()
            except (ApiStatusError, ApiUnreachableError, ConnectionConfigError) as error:
                log.warning("discovery failed", reason=str(error))
                await retries.pause()
            else:
                retries.reset()
                await asyncio.sleep(INTERVAL_S)


def _read(body: bytes, last: Served) -> Served:
    try:
        groups = msgspec.json.decode(body, type=_Groups)
    except msgspec.DecodeError as error:
        raise ApiUnreachableError(f"the answer is not a list of APIs: {error}") from error
    served: Served = {}
    for group in groups.items or ():
        name = group.metadata.name
        for version in group.versions or ():
            if version.freshness == "Stale":
                # Nothing is known now. The resources of this group are as they were.
                served.update((key, one) for key, one in last.items() if key[0] == name)
            for resource in version.resources or ():
                # Versions are in the order of preference.
                served.setdefault((name, resource.resource), _served(name, version, resource))
    return served


def _served(group: str, version: _Version, resource: _Resource) -> ServedResource:
    subresources = {each.subresource for each in resource.subresources or ()}
    return ServedResource(
        group=group,
        version=version.version,
        plural=resource.resource,
        kind=resource.response_kind.kind if resource.response_kind else "",
        is_namespaced=resource.scope == "Namespaced",
        has_status="status" in subresources,
    )
