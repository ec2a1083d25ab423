"""A client of the Kubernetes API.

It decodes only the fields that Phalanx reads. A refused credential is renewed and the request
repeated once; every other answer is the caller's to judge.
"""

import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Self, TypeVar

import aiohttp
import msgspec
from aiohttp.connector import NEEDS_CLEANUP_CLOSED
from multidict import CIMultiDict
from yarl import URL

from phalanx.kube.api.errors import ApiStatus, ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import Resource
from phalanx.kube.connection.cluster_connection import ClusterConnection, tls_context
from phalanx.kube.connection.credentials import FILE_LIFE_S, Credential
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
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._watch_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=timeout_s, sock_read=WATCH_SILENCE_S
        )
        # Lists of thousands of objects are faster to read than to unpack.
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": user_agent,
        }
        self._tls = _TlsContexts(connection)
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The callers bound their own concurrency; a watch keeps a connection for itself.
        # Connections that wait for the end of TLS are closed with it where Python does not do so.
        connector = aiohttp.TCPConnector(limit=0, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

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
        return await self.request("PATCH", path, body, headers={"Content-Type": kind})

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
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of the answer. Raises ApiStatusError, ApiUnreachableError or, if there are no
        usable credentials, ConnectionConfigError."""
        data = None if body is None else msgspec.json.encode(body)
        content = {"Content-Type": "application/json"} if data is not None else {}
        sent = _Request(method, path, data, params, {**content, **(headers or {})}, self._timeout)
        try:
            response = await self._send(sent)
            async with response:
                answer: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            raise status_error(response.status, answer, response.headers)
        return answer

    async def watch(self, path: str, params: Params) -> AsyncGenerator[list[bytes], None]:
        """The events of a watch as lines of JSON, as many at once as have arrived.

        Ends when the server ends the watch. Raises like `request`.
        """
        try:
            response = await self._send(
                _Request("GET", path, None, params, {}, self._watch_timeout)
            )
            async with response:
                if response.status >= 400:
                    body = await response.read()
                    raise status_error(response.status, body, response.headers)
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if lines:
                        yield lines
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    def decode(self, resource: Resource[T], body: bytes | msgspec.Raw) -> T:
        """The object in an answer. Raises ApiUnreachableError if the answer is not JSON."""
        return _decoded(self.decoder(resource.type), body)

    def decoder(self, kind: type[T]) -> msgspec.json.Decoder[T]:
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        return decoder

    async def _send(self, request: "_Request") -> aiohttp.ClientResponse:
        """The answer, after a second try with a new credential if the first was refused."""
        credential = await self.connection.credentials.current()
        response = await self._send_as(credential, request)
        if response.status == 401:
            renewed = await self.connection.credentials.renew(credential)
            if renewed != credential:
                response.release()
                return await self._send_as(renewed, request)
        return response

    async def _send_as(self, credential: Credential, request: "_Request") -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("bug: the client is used outside of its context")
        connection = self.connection
        headers = CIMultiDict(self._headers)
        headers.extend(connection.impersonation)
        headers.update(request.headers)
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        return await self._session.request(
            request.method,
            URL(connection.server + request.path, encoded=True),
            data=request.data,
            params=request.params,
            headers=headers,
            timeout=request.timeout,
            ssl=self._tls.context(credential),
            server_hostname=connection.tls_server_name,
            proxy=connection.proxy,
            allow_redirects=False,
        )

    def _unreachable(self, error: Exception) -> ApiUnreachableError:
        reason = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = "no answer in time"
        return ApiUnreachableError(f"{self.connection.server}: {reason}")


class _Request(NamedTuple):
    method: str
    path: str
    data: bytes | None
    params: Params | None
    headers: Mapping[str, str]
    timeout: aiohttp.ClientTimeout


class _TlsContexts:
    """The TLS context of the present credential. A replaced authority or certificate gives a new
    context, and with it new connections."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._made_for: tuple[bytes, bytes, bytes] | None = None
        self._context: ssl.SSLContext | bool = True
        self._read_at = 0.0

    def context(self, credential: Credential) -> ssl.SSLContext | bool:
        if not self._connection.server.startswith("https:"):
            return True
        client = (credential.certificate, credential.key)
        is_fresh = time.monotonic() - self._read_at < FILE_LIFE_S
        if self._made_for is not None and self._made_for[:2] == client and is_fresh:
            return self._context
        wanted = (*client, self._connection.authority.read())
        if wanted != self._made_for:
            self._context = tls_context(self._connection, credential)
            self._made_for = wanted
        self._read_at = time.monotonic()
        return self._context


def status_error(code: int, body: bytes, headers: Mapping[str, str]) -> ApiStatusError:
    """The error for an answer. Proxies answer with pages that are not a `Status`."""
    try:
        status = _status_decoder.decode(body)
    except msgspec.DecodeError:
        status = ApiStatus(message=body[:200].decode(errors="replace").strip())
    after = headers.get("Retry-After", "")
    retry_after_s = float(after) if after.isdigit() else 0.0
    return ApiStatusError(msgspec.structs.replace(status, code=code), retry_after_s)


D = TypeVar("D")


def _decoded(decoder: msgspec.json.Decoder[D], body: bytes | msgspec.Raw) -> D:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ApiUnreachableError(f"the answer is not an object of the API: {error}") from error
