"""Commits under one term, and the lease that limits how long this leader may answer.

The lease is measured on this process's monotonic clock, from before it was requested, so it ends
here no later than it ends in the store.
"""

import asyncio
from collections.abc import Callable, Sequence

from phalanx.core.changes import Changes
from phalanx.core.time_units import SECOND
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
    def __init__(
        self, store: Store, term: int, lease_s: float, began_s: float, new_id: Callable[[], str]
    ) -> None:
        self._store = store
        self.term = term
        self._lease_s = lease_s
        self._lease_until_s = began_s + lease_s
        #: The total time without a valid lease, in which no call could be answered.
        self.without_lease_s = 0.0
        self._renewing = asyncio.Lock()
        self._is_given_up = False
        self._new_id = new_id
        self._loop = asyncio.get_running_loop()

    def holds_lease(self) -> bool:
        return self._loop.time() < self._lease_until_s

    async def keep_lease(self) -> None:
        """Renew the lease before it expires, forever. Raises Deposed."""
        while True:
            await asyncio.sleep(self._lease_s / 4)
            async with self._renewing:
                if self._is_given_up:
                    raise Deposed(f"term {self.term} was given up")
                await self._renew()

    async def _renew(self) -> None:
        began = self._loop.time()
        try:
            await self._store.renew(self.term, round(self._lease_s * SECOND))
        except Deposed:
            raise
        except StoreError:
            # Without an answer the lease expires by itself. It is renewed when the store is back,
            # unless another server has taken over by then.
            return
        self.without_lease_s += max(0.0, self._loop.time() - self._lease_until_s)
        self._lease_until_s = began + self._lease_s

    async def give_up(self) -> None:
        """End the lease, here and in the store, so that a standby can lead at once."""
        async with self._renewing:  # a renewal under way must not outlast this
            self._is_given_up = True
            self._lease_until_s = self._loop.time()
            await self._store.resign(self.term)

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
            await self._store.commit(self.term, batch)
        except OutcomeUnknown:
            await self._resolve(batch)

    async def _resolve(self, batch: Batch) -> None:
        """Look the batch up in the store, and send it again until it is there."""
        while True:
            try:
                if await self._store.has_batch(batch.id):
                    return
                await self._store.commit(self.term, batch)
            except (Deposed, CommitFailed):
                raise
            except StoreError:
                await asyncio.sleep(_RETRY_S)
            else:
                return
