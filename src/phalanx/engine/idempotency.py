"""Idempotency keys: a request that is repeated with its key is carried out once.

A key belongs to its token: a later token of the same name has keys of its own. It is stored in the
commit of the change that was made with it, with a digest of the request, so that a key that is
reused for another request is refused.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from phalanx.core.errors import Conflict
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store, UsedKey

_encode = msgspec.json.Encoder(order="deterministic").encode


class RequestKey(NamedTuple):
    owner: str  #: the id of the token, or the name of a caller without one
    key: str
    #: The method, the path and the options of the request: what it means besides its content.
    action: tuple[str | bool, ...]
    #: Whether the caller may see the jobs of a namespace.
    may_see: Callable[[str], bool]


class KeyReused(Conflict):
    """The idempotency key was used before, for another request."""

    def __init__(self, key: str, job: str | None) -> None:
        created = "" if job is None else f", which created job {job}"
        super().__init__(
            f"idempotency key {key} was used for another request{created}; send a new key with"
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
            owner, key = self._key.owner, self._key.key
            turn.used_keys.append(UsedKey(owner, key, self._digest, turn.now, jobs))


class IdempotencyKeys:
    def __init__(self, store: Store) -> None:
        self._store = store
        #: The lock of each principal's key, and the number of requests that use it.
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def claim(self, key: RequestKey | None, *content: object) -> AsyncIterator[ClaimedKey]:
        """Handle one request at a time with this key. Raises KeyReused if the key was used for
        another action or with other content."""
        if key is None:
            yield ClaimedKey(None, "", None)
            return
        digest = hashlib.sha256(_encode((key.action, content))).hexdigest()
        async with self._locked(key.owner, key.key):
            earlier = await self._store.used_key(key.owner, key.key)
            if earlier is not None and earlier.digest != digest:
                raise KeyReused(key.key, await self._first_visible(earlier, key.may_see))
            yield ClaimedKey(key, digest, earlier)

    async def _first_visible(self, used: UsedKey, may_see: Callable[[str], bool]) -> str | None:
        """The first job of a request, if the caller may see it."""
        job = next((job for job in used.jobs if job is not None), None)
        row = None if job is None else await self._store.job(job)
        return job if row is not None and may_see(row[0].spec.namespace) else None

    @asynccontextmanager
    async def _locked(self, principal: str, name: str) -> AsyncIterator[None]:
        key = (principal, name)
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
