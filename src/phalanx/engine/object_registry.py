"""The objects of the cluster, such as secrets and policies, in memory.

A change through this server is in force when it is answered. A change through another server, which
led before, is read at the beginning of a term and soon after in any case.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from phalanx.store.protocol import AuditRecord, ClusterObject, ObjectKey, Store, StoreError

_REFRESH_S = 2.0


class ObjectRegistry:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._objects: dict[ObjectKey, ClusterObject] = {}
        self._term: int | None = None
        self.version = -1  #: changes with the objects
        self.observers: list[Callable[[], None]] = []  #: called after each change

    def of_kind(self, kind: str) -> list[ClusterObject]:
        return [each for key, each in sorted(self._objects.items()) if key.kind == kind]

    def get(self, key: ObjectKey) -> ClusterObject | None:
        return self._objects.get(key)

    async def change(
        self,
        put: Sequence[ClusterObject],
        removed: Sequence[ObjectKey] = (),
        audit: AuditRecord | None = None,
    ) -> None:
        """Remove objects, then store others, durably and together. Raises StoreError."""
        await self._store.change_objects(put, removed, audit)
        await self.refresh()

    async def begin_term(self, term: int | None) -> None:
        """Read what other servers have changed, once in each term."""
        if term != self._term:
            await self.refresh()
            self._term = term

    async def refresh(self) -> None:
        """Read the objects if they have changed. Raises StoreError."""
        version = await self._store.objects_version()
        if version == self.version:
            return
        self._objects = {each.key: each for each in await self._store.objects()}
        self.version = version
        for observer in self.observers:
            observer()

    async def keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            with suppress(StoreError):  # tried again soon
                await self.refresh()
