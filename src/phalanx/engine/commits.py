"""Commits under one term, sent again until their outcome is known."""

import asyncio
from collections.abc import Callable, Sequence

from phalanx.core.changes import Changes
from phalanx.store.batches import batch_of
from phalanx.store.protocol import (
    AuditRecord,
    Batch,
    CommitFailed,
    Deposed,
    OutcomeUnknown,
    Store,
    StoreError,
    UsedKey,
)

#: Pause between two tries at a store that does not answer.
_RETRY_S = 0.2


class Commits:
    def __init__(self, store: Store, term: int, new_id: Callable[[], str]) -> None:
        self._store = store
        self._term = term
        self._new_id = new_id

    async def commit(
        self,
        changes: Sequence[Changes],
        used_keys: Sequence[UsedKey] = (),
        audit: Sequence[AuditRecord] = (),
    ) -> None:
        """Make the changes durable.

        Raises Deposed or CommitFailed, after which the state in memory must be discarded.
        """
        if not changes and not used_keys and not audit:
            return
        batch = batch_of(self._new_id(), changes, used_keys, audit)
        try:
            await self._store.commit(self._term, batch)
        except OutcomeUnknown:
            await self._resolve(batch)

    async def _resolve(self, batch: Batch) -> None:
        """Look the batch up in the store, and send it again until it is there."""
        while True:
            try:
                if await self._store.has_batch(batch.id):
                    return
                await self._store.commit(self._term, batch)
            except (Deposed, CommitFailed):
                raise
            except StoreError:
                await asyncio.sleep(_RETRY_S)
            else:
                return
