"""A local copy of a collection, kept up to date by a watch.

The copy is listed page by page and then watched from the version of the list. When a watch cannot
go on from its version, the collection is listed again, and the difference to the copy is reported
as changes: no change is missed, and an object that was replaced is reported as deleted and added.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from phalanx.kube.api.client import PAGE_SIZE, ApiClient, Page, Params
from phalanx.kube.api.errors import ApiStatus, ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import Resource
from phalanx.kube.api.retries import Retries
from phalanx.kube.connection.errors import ConnectionConfigError
from phalanx.kube.objects.metadata import ApiObject, ObjectMeta

T = TypeVar("T", bound=ApiObject)

#: The server ends a watch after about this time, so that load moves to new API servers.
WATCH_S = 480

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Change(NamedTuple, Generic[T]):
    """An object before and after. A new object has no before, a deleted one no after."""

    before: T | None
    after: T | None


class Selection(NamedTuple):
    """Which objects of a collection are copied. Empty selectors select all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def params(self) -> dict[str, str | int]:
        params: dict[str, str | int] = {}
        if self.labels:
            params["labelSelector"] = self.labels
        if self.fields:
            params["fieldSelector"] = self.fields
        return params


class _EventKind(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


Item = TypeVar("Item")


class _WatchEvent(msgspec.Struct, Generic[Item], frozen=True):
    type: _EventKind
    object: Item


_raw_decoder = msgspec.json.Decoder(_WatchEvent[msgspec.Raw])


@cache
def _event_decoder(kind: type[Any]) -> msgspec.json.Decoder[_WatchEvent[Any]]:
    return msgspec.json.Decoder(_WatchEvent[kind])  # type: ignore[valid-type]


_status_decoder = msgspec.json.Decoder(ApiStatus)
_metadata_decoder = msgspec.json.Decoder(ApiObject)


class Reflector(Generic[T]):
    """The copy of a collection. `on_changes` is called in the event loop with every batch. Objects
    that `keeps` refuses are not in the copy, and only their changes in a watch are reported."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[T],
        on_changes: Callable[[list[Change[T]]], None],
        selection: Selection = Selection(),  # noqa: B008
        keeps: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self.objects: dict[str, T] = {}  #: by `namespace/name`
        self.unreadable: dict[str, str] = {}  #: objects that do not have the expected form → why
        self.synced = asyncio.Event()  #: set once the first list is complete
        self.lists = 0
        self.watches = 0
        self._client = client
        self._resource = resource
        self._decoder = _event_decoder(resource.type)
        self._on_changes = on_changes
        self._selection = selection
        self._keeps = keeps
        self._version = ""
        self._must_list = True
        self._lists_begun = 0
        self._listed = asyncio.Event()
        self._retries = Retries(at_once=True)
        self._watching: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Keep the copy up to date, until cancelled. Every fault is logged and tried again."""
        while True:
            at_least_s = 0.0
            try:
                while self._must_list:  # again, if `catch_up` was called in the middle of a list
                    await self._list()
                await self._watch_until_cancelled()
            except ApiStatusError as error:
                if error.is_gone:  # the version is too old; a list has a new one
                    self._must_list = True
                else:
                    self._log_fault(error)
                    at_least_s = error.retry_after_s
            except (ApiUnreachableError, ConnectionConfigError) as error:
                self._log_fault(error)
            await self._retries.pause(at_least_s)

    async def read(self) -> None:
        """List once, without a watch. Raises like `ApiClient.request`."""
        await self._list()

    async def catch_up(self) -> None:
        """List again, and return when the copy is at least as new as this call."""
        self._must_list = True
        wanted = self._lists_begun + 1
        if self._watching is not None:
            self._watching.cancel()
        while self.lists < wanted:
            self._listed.clear()
            await self._listed.wait()

    async def _list(self) -> None:
        self._must_list = False
        self._lists_begun += 1
        number = self._lists_begun
        try:
            objects, unreadable, version = await self._all_pages()
        except BaseException:
            self._must_list = True
            raise
        changes = list(self._difference(objects))
        for key, reason in unreadable.items():
            if self.unreadable.get(key) != reason:
                self._log_unreadable(key, reason)
        self.objects, self.unreadable, self._version = objects, unreadable, version
        self.lists = number
        self._listed.set()
        if changes:
            self._on_changes(changes)
        self.synced.set()

    async def _all_pages(self) -> tuple[dict[str, T], dict[str, str], str]:
        try:
            return await self._pages(PAGE_SIZE)
        except ApiStatusError as error:
            if not error.is_gone:
                raise
            # The pages took so long that their version is gone: read everything at once.
            return await self._pages(None)

    async def _pages(self, limit: int | None) -> tuple[dict[str, T], dict[str, str], str]:
        params = self._selection.params()
        if limit is not None:
            params["limit"] = limit
        objects: dict[str, T] = {}
        unreadable: dict[str, str] = {}
        coming = self._ask_for_page(params)
        try:
            while True:
                page = await coming
                if page.next_page:
                    # The server prepares the next page while this one is taken over.
                    coming = self._ask_for_page({**params, "continue": page.next_page})
                    await asyncio.sleep(0)
                kept = {item.metadata.key: item for item in page.items if self._keeps(item)}
                objects |= kept
                unreadable |= {item.metadata.key: reason for item, reason in page.unreadable}
                if not self.synced.is_set():
                    self._take_first(kept)
                if not page.next_page:
                    return objects, unreadable, page.resource_version
        finally:
            coming.cancel()

    def _ask_for_page(self, params: Params) -> "asyncio.Task[Page[T]]":
        page = self._client.page(self._resource, params, self._selection.namespace)
        return asyncio.create_task(page)

    def _take_first(self, objects: dict[str, T]) -> None:
        """Report objects of the first list before it is complete: nothing can be missing."""
        new = {key: item for key, item in objects.items() if key not in self.objects}
        self.objects |= new
        self._on_changes([Change(None, item) for item in new.values()])

    def _difference(self, objects: dict[str, T]) -> Iterator[Change[T]]:
        """The changes that lead from the copy to the listed objects."""
        for key, before in self.objects.items():
            after = objects.get(key)
            if after is None:
                yield Change(before, None)
            elif after.metadata.uid != before.metadata.uid:
                yield Change(before, None)
                yield Change(None, after)
            elif after.metadata.resource_version != before.metadata.resource_version:
                yield Change(before, after)
        for key, after in objects.items():
            if key not in self.objects:
                yield Change(None, after)

    async def _watch_until_cancelled(self) -> None:
        """Watch. Returns when the server ends the watch, or `catch_up` cancels it."""
        self._watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait([self._watching])
        finally:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if not self._watching.cancelled():
            self._watching.result()

    async def _watch(self) -> None:
        """Apply events until the server ends the watch. Raises like `ApiClient.request`."""
        params = self._selection.params()
        params["watch"] = "true"
        params["allowWatchBookmarks"] = "true"
        params["resourceVersion"] = self._version
        params["timeoutSeconds"] = round(WATCH_S * random.uniform(0.8, 1.2))  # noqa: S311
        self.watches += 1
        path = self._resource.path(self._selection.namespace)
        await self._client.watch(path, params, self._take)

    def _take(self, lines: list[bytes]) -> None:
        """Apply events, and report the changes up to the first event that cannot be read."""
        changes: list[Change[T]] = []
        try:
            for line in lines:
                if line:
                    self._apply(line, changes)
            self._retries.reset()
        finally:
            if changes:
                self._on_changes(changes)

    def _apply(self, line: bytes, changes: list[Change[T]]) -> None:
        kind, item, metadata, reason = self._read_event(line)
        after = item if kind in (_EventKind.ADDED, _EventKind.MODIFIED) else None
        self._version = metadata.resource_version
        if kind is _EventKind.BOOKMARK:
            return
        key = metadata.key
        self.unreadable.pop(key, None)
        if reason:
            self.unreadable[key] = reason
            self._log_unreadable(key, reason)
        before = self.objects.pop(key, None) if after is None else self.objects.get(key)
        if after is not None:
            if self._keeps(after):
                self.objects[key] = after
            if before is not None and before.metadata.uid != after.metadata.uid:
                changes.append(Change(before, None))
                before = None
        if before is not None or after is not None:
            changes.append(Change(before, after))

    def _read_event(self, line: bytes) -> tuple[_EventKind, T | None, ObjectMeta, str]:
        """The kind of an event, its object with the metadata, and why the object cannot be read."""
        try:
            event = self._decoder.decode(line)
        except msgspec.ValidationError:
            pass  # not an object of this kind: read in two steps
        except msgspec.DecodeError as error:
            raise ApiUnreachableError(f"the watch sent what is no event: {error}") from error
        else:
            if event.type is not _EventKind.ERROR:
                return event.type, event.object, event.object.metadata, ""
        try:
            raw = _raw_decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ApiUnreachableError(f"the watch sent what is no event: {error}") from error
        if raw.type is _EventKind.ERROR:
            raise ApiStatusError(_status_decoder.decode(raw.object))
        reason = ""
        try:
            self._client.decoder(self._resource.type).decode(raw.object)
        except msgspec.ValidationError as error:
            reason = str(error) if raw.type is not _EventKind.BOOKMARK else ""
        return raw.type, None, _metadata_decoder.decode(raw.object).metadata, reason

    def _log_fault(self, error: Exception) -> None:
        is_forbidden = isinstance(error, ApiStatusError) and error.code == 403
        cure = {"cure": "apply deploy/kubernetes/rbac.yaml"} if is_forbidden else {}
        log.warning("watch interrupted", resource=str(self._resource), reason=str(error), **cure)

    def _log_unreadable(self, key: str, reason: str) -> None:
        log.warning("object ignored", resource=str(self._resource), object=key, reason=reason)
