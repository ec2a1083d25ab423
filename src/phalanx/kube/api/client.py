"""A client of the Kubernetes API.

It decodes only the fields that Phalanx reads. A refused credential is renewed and the request
repeated once; every other answer is the caller's to judge.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from phalanx.kube.api.connection_fault import connection_fault
from phalanx.kube.api.direct_transport import DirectTransport
from phalanx.kube.api.errors import ApiStatus, ApiStatusError, ApiUnreachableError
from phalanx.kube.api.proxy_transport import ProxyTransport
from phalanx.kube.api.resources import Resource
from phalanx.kube.api.transport import ApiTransport, WireAnswer, WireRequest
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.objects.metadata import ApiObject

T = TypeVar("T", bound=ApiObject)

REQUEST_TIMEOUT_S = 30.0
#: A watch that delivers nothing for this long is opened anew: the server sends a bookmark every
#: minute, so the connection is probably dead.
WATCH_SILENCE_S = 150.0
PAGE_SIZE = 500

Params = Mapping[str, str | int]


class PatchKind(StrEnum):
    MERGE = "application/merge-patch+json"
    #: Lists with a merge key, such as conditions, are merged by that key.
    STRATEGIC = "application/strategic-merge-patch+json"


class Page(NamedTuple, Generic[T]):
    """A part of a list. `next_page` is empty on the last one."""

    items: list[T]
    unreadable: list[tuple[ApiObject, str]]  #: objects that do not have the expected form
    resource_version: str
    next_page: str


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_RawList)
_status_decoder = msgspec.json.Decoder(ApiStatus)
_metadata_decoder = msgspec.json.Decoder(ApiObject)


class ApiClient:
    """Requests to one API server, from one event loop. Use it as an asynchronous context."""

    def __init__(
        self,
        connection: ClusterConnection,
        *,
        user_agent: str = "phalanx",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.connection = connection
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}
        self._transport: ApiTransport | None = None

    async def __aenter__(self) -> Self:
        kind = DirectTransport if self.connection.proxy is None else ProxyTransport
        self._transport = kind(self.connection, self._user_agent)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            await self._transport.close()

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        body = await self.request("GET", resource.path(namespace, name))
        return self.decode(resource, body)

    async def page(
        self, resource: Resource[T], params: Params | None = None, namespace: str = ""
    ) -> Page[T]:
        """One page of a list; without `limit` in the parameters the page is the whole list."""
        body = await self.request("GET", resource.path(namespace), params=params)
        answer = _decoded(_list_decoder, body)
        items, unreadable = [], []
        decode = self.decoder(resource.type).decode
        for item in answer.items or ():
            try:
                items.append(decode(item))
            except msgspec.ValidationError as error:
                unreadable.append((_decoded(_metadata_decoder, item), str(error)))
        return Page(items, unreadable, answer.metadata.resource_version, answer.metadata.next_page)

    async def list_all(
        self, resource: Resource[T], params: Params | None = None, namespace: str = ""
    ) -> list[T]:
        """All objects that can be read, page by page."""
        items: list[T] = []
        query: dict[str, str | int] = {**(params or {}), "limit": PAGE_SIZE}
        while True:
            page = await self.page(resource, query, namespace)
            items += page.items
            if not page.next_page:
                return items
            query["continue"] = page.next_page

    async def create(
        self,
        resource: Resource[T],
        body: object,
        namespace: str = "",
        *,
        params: Params | None = None,
    ) -> T:
        path = resource.path(namespace)
        return self.decode(resource, await self.request("POST", path, body, params=params))

    async def replace(
        self, resource: Resource[T], body: object, name: str, namespace: str = ""
    ) -> T:
        path = resource.path(namespace, name)
        return self.decode(resource, await self.request("PUT", path, body))

    async def patch(self, path: str, body: object, kind: PatchKind = PatchKind.MERGE) -> bytes:
        return await self.request("PATCH", path, body, content_type=kind)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        grace_s: int | None = None,
        uid: str = "",
    ) -> None:
        """Delete the object, with its uid as a precondition if it is given."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        await self.request("DELETE", resource.path(namespace, name), options)

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Params | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The body of the answer. Raises ApiStatusError, ApiUnreachableError or, if there are no
        usable credentials, ConnectionConfigError."""
        data = None if body is None else msgspec.json.encode(body)
        return await self.send(WireRequest(method, _target(path, params), data, content_type))

    async def send(self, request: WireRequest) -> bytes:
        """The body of the answer to an encoded request. Raises like `request`."""
        transport, credentials = self._open_transport(), self.connection.credentials
        credential = await credentials.current()
        try:
            answer = await transport.exchange(request, credential, self._timeout_s)
            if answer.status == 401:
                renewed = await credentials.renew(credential)
                if renewed != credential:
                    answer = await transport.exchange(request, renewed, self._timeout_s)
        except OSError as error:  # also TimeoutError
            raise self._unreachable(error) from error
        if answer.status >= 400:
            raise status_error(answer)
        return answer.body

    async def watch(
        self, path: str, params: Params, on_lines: Callable[[list[bytes]], None]
    ) -> None:
        """Call `on_lines` with the events of a watch as lines of JSON, as many at once as have
        arrived, until the server ends the watch. Raises like `request`, and what `on_lines` raises.
        """
        rest = b""

        def on_data(data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                on_lines(lines)

        transport, credentials = self._open_transport(), self.connection.credentials
        request = WireRequest("GET", _target(path, params))
        credential = await credentials.current()
        try:
            answer = await transport.stream(request, credential, on_data, WATCH_SILENCE_S)
            if answer.status == 401:
                renewed = await credentials.renew(credential)
                if renewed != credential:
                    answer = await transport.stream(request, renewed, on_data, WATCH_SILENCE_S)
        except OSError as error:
            raise self._unreachable(error) from error
        if answer.status >= 400:
            raise status_error(answer)

    def _open_transport(self) -> ApiTransport:
        if self._transport is None:
            raise RuntimeError("bug: the client is used outside of its context")
        return self._transport

    def decode(self, resource: Resource[T], body: bytes | msgspec.Raw) -> T:
        """The object in an answer. Raises ApiUnreachableError if the answer is not JSON."""
        return _decoded(self.decoder(resource.type), body)

    def decoder(self, kind: type[T]) -> msgspec.json.Decoder[T]:
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        return decoder

    def _unreachable(self, error: Exception) -> ApiUnreachableError:
        return ApiUnreachableError(f"{self.connection.server}: {connection_fault(error)}")


def status_error(answer: WireAnswer) -> ApiStatusError:
    """The error for an answer. Proxies answer with pages that are not a `Status`."""
    try:
        status = _status_decoder.decode(answer.body)
    except msgspec.DecodeError:
        status = ApiStatus(message=answer.body[:200].decode(errors="replace").strip())
    after = answer.retry_after
    retry_after_s = float(after) if after.isdigit() else 0.0
    return ApiStatusError(msgspec.structs.replace(status, code=answer.status), retry_after_s)


def _target(path: str, params: Params | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


D = TypeVar("D")


def _decoded(decoder: msgspec.json.Decoder[D], body: bytes | msgspec.Raw) -> D:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ApiUnreachableError(f"the answer is not an object of the API: {error}") from error
