"""Sessions: what a browser gets in exchange for a token, so that it does not keep the token.

A session is stored as a token of the role `session` that names its owner, the token it was begun
with. It has the rights of its owner, and ends when its owner is revoked or gets another secret.
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import uuid4

from phalanx.core.errors import Conflict
from phalanx.core.time_units import HOUR, Micros
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal, check_role
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import SESSION, digest, new_secret
from phalanx.store.protocol import AuditRecord, Store, Token

LIFETIME: Micros = 7 * 24 * HOUR
_PREFIX = "session:"


class NewSession(NamedTuple):
    secret: str  #: for the cookie; not stored
    principal: Principal
    expires_at: Micros


class Sessions:
    def __init__(
        self, store: Store, registry: TokenRegistry, clock: Callable[[], Micros] = wall_clock
    ) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock

    async def check(self, bearer: str) -> Principal:
        """The principal that signs in with this token. Raises Unauthorised or Forbidden."""
        principal = await self._registry.principal(bearer, loopback=False)
        check_role(principal, ("user",))
        return principal

    async def begin(self, bearer: str, audit: AuditRecord | None = None) -> NewSession:
        """Raises Unauthorised, and Forbidden for a token of a worker."""
        principal = await self.check(bearer)
        now, secret = self._clock(), new_secret()
        owner = self._registry.named(principal.name)
        limit = None if owner is None else owner.expires_at
        expires_at = now + LIFETIME if limit is None else min(now + LIFETIME, limit)
        session = Token(
            name=_PREFIX + uuid4().hex,
            role=SESSION,
            digest=digest(secret),
            prefix="",
            created_at=now,
            expires_at=expires_at,
            owner=principal.name,
            owner_digest=digest(bearer),
        )
        await self._forget_ended(now)
        version = await self._store.add_token(session, audit)
        if version is None:
            raise Conflict("bug: a session with this name exists already; sign in again")
        self._registry.put(session, version)
        return NewSession(secret, principal, expires_at)

    async def end(self, secret: str, audit: AuditRecord | None = None) -> None:
        """Refuse the session from now on. A session that has ended already is left alone."""
        session = self._registry.with_digest(digest(secret))
        if session is None or session.role != SESSION:
            return
        version = await self._store.remove_token(session.name, audit)
        if version is not None:
            self._registry.drop(session.name, version)

    async def _forget_ended(self, now: Micros) -> None:
        """Remove the sessions that have expired, or whose owner is gone."""
        for token in await self._store.tokens():
            if token.role != SESSION:
                continue
            is_over = token.expires_at is not None and now >= token.expires_at
            if is_over or self._registry.named(token.owner) is None:
                await self._store.remove_token(token.name)
