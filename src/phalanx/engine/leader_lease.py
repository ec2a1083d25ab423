"""The lease of one term, which limits how long this leader may answer.

The lease is measured on this process's monotonic clock, from before it was requested, so it ends
here no later than it ends in the store.
"""

import asyncio

from phalanx.core.time_units import SECOND
from phalanx.store.protocol import Deposed, Store, StoreError


class LeaderLease:
    def __init__(self, store: Store, term: int, lease_s: float, began_s: float) -> None:
        self._store = store
        self._term = term
        self._lease_s = lease_s
        self._until_s = began_s + lease_s
        #: The total time without a valid lease, in which no call could be answered.
        self.without_lease_s = 0.0
        self._renewing = asyncio.Lock()
        self._is_given_up = False
        self._loop = asyncio.get_running_loop()

    def is_valid(self) -> bool:
        return self._loop.time() < self._until_s

    async def keep_renewing(self) -> None:
        """Renew the lease before it expires, forever. Raises Deposed."""
        while True:
            await asyncio.sleep(self._lease_s / 4)
            async with self._renewing:
                if self._is_given_up:
                    raise Deposed(f"term {self._term} was given up")
                await self._renew()

    async def _renew(self) -> None:
        began = self._loop.time()
        try:
            await self._store.renew(self._term, round(self._lease_s * SECOND))
        except Deposed:
            raise
        except StoreError:
            # Without an answer the lease expires by itself. It is renewed when the store is back,
            # unless another server has taken over by then.
            return
        self.without_lease_s += max(0.0, self._loop.time() - self._until_s)
        self._until_s = began + self._lease_s

    async def give_up(self) -> None:
        """End the lease, here and in the store, so that a standby can lead at once."""
        async with self._renewing:  # a renewal under way must not outlast this
            self._is_given_up = True
            self._until_s = self._loop.time()
            await self._store.resign(self._term)
