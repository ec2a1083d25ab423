"""Idempotency keys: a request that is repeated with its key is carried out once.

A key belongs to its principal. It is stored in the commit of the change that was made with it, with
a digest of the request, so that a key that is reused for another request is refused.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from phalanx.core.errors import Conflict
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store, UsedKey

_encode = msgspec.json.Encoder(order="deterministic").encode


class RequestKey(NamedTuple):
    principal: str
    key: str


class KeyReused(Conflict):
    """The idempotency key was used before, for another request."""

    def __init__(self, used: UsedKey) -> None:
        jobs = [job for job in used.jobs if job is not None]
        created = f", which created job {jobs[0]}" if jobs else ""
        super().__init__(
            f"idempotency key {used.key} was used for another request{created}; send a new key with"
            " this request, or repeat the first request unchanged"
        )


class ClaimedKey:
    """A key that no other request uses at the same time. Without a key it does nothing."""

    def __init__(self, key: RequestKey | None, digest: str, earlier: UsedKey | None) -> None:
        self._key = key
        self._digest = digest
        self.earlier = earlier  #: the same request, if it was carried out before

    def use(self, turn: Turn, *jobs: str | None) -> None:
        """Store the key in the commit of this turn, with the jobs that the request submitted."""
        if self._key is not None and (self.earlier is None or self.earlier.jobs != jobs):
            turn.used_keys.append(UsedKey(*self._key, self._digest, turn.now, jobs))


class IdempotencyKeys:
    def __init__(self, store: Store) -> None:
        self._store = store
        #: The lock of each key, and the number of requests that use it.
        self._locks: dict[RequestKey, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def claim(self, key: RequestKey | None, *content: object) -> AsyncIterator[ClaimedKey]:
        """Handle one request at a time with this key. Raises KeyReused if the key was used with
        other content."""
        if key is None:
            yield ClaimedKey(None, "", None)
            return
        digest = hashlib.sha256(_encode(content)).hexdigest()
        async with self._locked(key):
            earlier = await self._store.used_key(*key)
            if earlier is not None and earlier.digest != digest:
                raise KeyReused(earlier)
            yield ClaimedKey(key, digest, earlier)

    @asynccontextmanager
    async def _locked(self, key: RequestKey) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
