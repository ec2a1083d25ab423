"""The tokens of the store as of the last refresh, and the principal of each request.

A server reads the tokens again within seconds of a change, so that a revoked one is refused soon.
"""

import asyncio
import hmac
from collections.abc import Callable
from itertools import islice

from msgspec.structs import replace

from phalanx.core.spec.job import JobSpec
from phalanx.core.text import utc_time
from phalanx.core.time_units import HOUR, Micros
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import (
    Forbidden,
    Principal,
    Revoked,
    Unauthorised,
    check_namespaces_of,
)
from phalanx.identity.tokens import LOCAL, ROLES, SESSION, digest
from phalanx.store.protocol import Store, StoreError, Token

#: How often a server reads the tokens again if they have changed.
_REFRESH_S = 2.0
#: The least time between two reads because of unknown tokens.
_REFRESH_AGAIN_S = 0.5
#: How exactly the last use of a token is stored, and how many uses are stored at a time.
_USE_STORED_EVERY: Micros = HOUR
_USES_AT_ONCE = 200


class TokenRegistry:
    def __init__(
        self, store: Store, *, open_on_loopback: bool, clock: Callable[[], Micros] = wall_clock
    ) -> None:
        #: Called with each worker whose credential is revoked, perhaps more than once.
        self.on_revoked: Callable[[str], object] = lambda worker: None
        self._store = store
        self.open_on_loopback = open_on_loopback
        self._clock = clock
        self._by_name: dict[str, Token] = {}
        self._by_digest: dict[str, Token] = {}
        self._version = -1
        self._refreshed_at = float("-inf")
        self._refreshing = asyncio.Lock()
        self._looking_again = asyncio.Lock()
        self._used_at: dict[str, Micros] = {}
        self._use_stored: dict[str, Micros] = {}

    @property
    def has_tokens(self) -> bool:
        return bool(self._by_name)

    def named(self, name: str) -> Token | None:
        return self._by_name.get(name)

    def has_digest(self, secret_digest: str) -> bool:
        return secret_digest in self._by_digest

    def with_digest(self, secret_digest: str) -> Token | None:
        return self._by_digest.get(secret_digest)

    def used_at(self, name: str) -> Micros | None:
        """When this server last accepted the token; None if it has not since it started."""
        return self._used_at.get(name)

    # Reading

    async def refresh(self) -> None:
        """Read the tokens if they have changed. Raises StoreError, and keeps the known ones then.

        The version is read first, so that a change in between is noticed by the next refresh.
        """
        async with self._refreshing:
            version = await self._store.tokens_version()
            if version != self._version:
                tokens = await self._store.tokens()
                self._by_name = {token.name: token for token in tokens}
                self._by_digest = {}
                for token in tokens:
                    self._index(token)
                self._version = version
            self._refreshed_at = asyncio.get_running_loop().time()

    def put(self, token: Token, version: int) -> None:
        """Know a token that was stored just now, which made this version."""
        if version > self._version:
            self.drop(token.name, version)
            self._by_name[token.name] = token
            self._index(token)

    def drop(self, name: str, version: int) -> None:
        """Refuse a token that was removed from the store just now, which made this version.

        If that is the next version, nothing else has changed, and nothing has to be read. If a
        refresh has read a later one already, that is the truth.
        """
        if version <= self._version:
            return
        if version == self._version + 1:
            self._version = version
        token = self._by_name.pop(name, None)
        if token is not None:
            self._by_digest.pop(token.digest, None)
            self._by_digest.pop(token.next_digest, None)

    def _index(self, token: Token) -> None:
        self._by_digest[token.digest] = token
        if token.next_digest:
            self._by_digest[token.next_digest] = token
        if token.revoked_at is not None:
            self.on_revoked(token.workers)

    async def keep_refreshing(self) -> None:
        """Refresh forever, whether or not the store answers."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            await self._try_refresh()
            await self._store_uses()

    async def _refresh_for_unknown(self) -> None:
        """Refresh for a token that may be new, but not so often that guesses load the store."""
        async with self._looking_again:
            if asyncio.get_running_loop().time() - self._refreshed_at >= _REFRESH_AGAIN_S:
                await self._try_refresh()

    async def _try_refresh(self) -> None:
        try:
            await self.refresh()
        except StoreError:
            self._refreshed_at = asyncio.get_running_loop().time()

    async def _store_uses(self) -> None:
        due = (
            (name, at)
            for name, at in self._used_at.items()
            if at - self._use_stored.get(name, 0) >= _USE_STORED_EVERY
        )
        uses = dict(islice(due, _USES_AT_ONCE))
        if not uses:
            return
        try:
            await self._store.note_token_uses(uses)
        except StoreError:
            return
        self._use_stored |= uses

    # Principals

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        """The principal of a token or a session, or of a caller without one. Raises
        Unauthorised."""
        if bearer is None:
            if loopback and self.open_on_loopback:
                return Principal(LOCAL, "admin")
            raise Unauthorised("a token is required; send it as `Authorization: Bearer TOKEN`")
        wanted = digest(bearer)
        token = self._find(wanted)
        if token is None:
            await self._refresh_for_unknown()
            token = self._find(wanted)
        if token is None:
            raise Unauthorised("the token is unknown; it may have been revoked")
        now = self._clock()
        if token.role == SESSION:
            token = self._owner_of(token, now)
        principal = _principal(token, now)
        self._used_at[token.name] = now
        if wanted == token.next_digest:
            await self._end_previous(token)
        return principal

    def _owner_of(self, session: Token, now: Micros) -> Token:
        """The token that a session was begun with. Raises Unauthorised if the session is over."""
        owner = self._by_name.get(session.owner)
        is_over = session.expires_at is not None and now >= session.expires_at
        if (
            is_over
            or owner is None
            or session.owner_digest
            not in (
                owner.digest,
                owner.next_digest,
            )
        ):
            raise Unauthorised("the session is over; sign in again")
        return owner

    def owner(self, name: str) -> Principal | None:
        """The principal that a job belongs to, by name; None if its token is not valid."""
        if name == LOCAL and self.open_on_loopback:
            return Principal(LOCAL, "admin")
        token = self._by_name.get(name)
        try:
            return None if token is None else _principal(token, self._clock())
        except Unauthorised:
            return None

    def refusal(self, spec: JobSpec, owner: str) -> str | None:
        """Why this owner may not run this job; None if it may."""
        if owner == LOCAL and self.open_on_loopback:
            return None
        token = self._by_name.get(owner)
        if token is None:
            return f"{owner or 'the owner'} has no token any more"
        try:
            check_namespaces_of(_principal(token, self._clock()), spec)
        except (Forbidden, Unauthorised) as error:
            return str(error)
        return None

    def _find(self, wanted: str) -> Token | None:
        token = self._by_digest.get(wanted)
        if token is None:
            return None
        stored = token.next_digest if wanted == token.next_digest else token.digest
        return token if hmac.compare_digest(stored, wanted) else None

    async def _end_previous(self, token: Token) -> None:
        """Refuse the previous secret of a token from now on: the new one has arrived."""
        after = replace(token, digest=token.next_digest, next_digest="")
        try:
            version = await self._store.replace_token(token, after)
            if version is not None:
                self.put(after, version)
        except StoreError:
            return  # the next use of the token tries again


def _principal(token: Token, now: Micros) -> Principal:
    """Raises Unauthorised for a token that is not valid any more."""
    if token.role not in ROLES:
        raise Unauthorised(f"token {token.name} has an unknown role, {token.role}")
    if token.revoked_at is not None:
        revoked_at = utc_time(token.revoked_at)
        raise Revoked(
            f"the credential of worker {token.workers} was revoked at {revoked_at}; to"
            " join again, remove the file `credential` in the worker's state directory and start"
            " the worker with a join token"
        )
    if token.expires_at is not None and now >= token.expires_at:
        expired_at = utc_time(token.expires_at)
        cure = "ask an admin for a new one"
        if token.role == "admin":
            cure = (
                f"ask another admin to run `phalanx token rotate {token.name}`, or run it with"
                " `--store` on the host of a server"
            )
        raise Unauthorised(f"token {token.name} expired at {expired_at}; {cure}")
    return Principal(token.name, token.role, token.namespaces, token.workers, token.id)
