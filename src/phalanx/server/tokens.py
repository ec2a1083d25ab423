"""Bearer tokens: create them, and find the principal of a token.

A token has 256 random bits, so its SHA-256 reveals nothing about it, and neither does the time of a
lookup by digest.
"""

import asyncio
import hashlib
import hmac
import secrets
from typing import NamedTuple, cast

from phalanx.api.auth import Forbidden, Principal, Role, Unauthorised, check_namespace
from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import Micros
from phalanx.store.protocol import Store, StoreError, Token

#: The principal of requests without a token, on the host of an open server.
_LOCAL = "local"
ROLES = ("user", "worker", "admin")
_PREFIX = "phx_"
_SHOWN_CHARS = len(_PREFIX) + 6

#: How often a server reads the tokens again.
_REFRESH_S = 2.0
#: The least time between two reads because of unknown tokens.
_REFRESH_AGAIN_S = 0.5


class NewToken(NamedTuple):
    secret: str  #: shown once and not stored
    token: Token


def new_token(name: str, role: str, namespaces: tuple[str, ...], now: Micros) -> NewToken:
    secret = _PREFIX + secrets.token_urlsafe(32)
    return NewToken(
        secret, Token(name, role, digest(secret), secret[:_SHOWN_CHARS], now, namespaces)
    )


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class TokenRegistry:
    """Finds principals by the tokens of the store, as of the last refresh."""

    def __init__(self, store: Store, *, open_on_loopback: bool) -> None:
        self._store = store
        self._open_on_loopback = open_on_loopback
        self._tokens: dict[str, Token] = {}
        self._refreshed_at = float("-inf")
        self._refreshing = asyncio.Lock()

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    async def refresh(self) -> None:
        """Read the tokens from the store. Raises StoreError, and keeps the known tokens then."""
        self._tokens = {token.digest: token for token in await self._store.tokens()}
        self._refreshed_at = asyncio.get_running_loop().time()

    async def keep_refreshing(self) -> None:
        """Refresh forever, whether or not the store answers."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            await self._try_refresh()

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        """The principal of a token, or of a caller without one. Raises Unauthorised."""
        if bearer is None:
            if loopback and self._open_on_loopback:
                return Principal(_LOCAL, "admin", ())
            raise Unauthorised("a token is required; send it as `Authorization: Bearer TOKEN`")
        token = self._find(bearer)
        if token is None:
            await self._refresh_for_unknown()
            token = self._find(bearer)
        if token is None:
            raise Unauthorised("the token is unknown; it may have been revoked")
        return _principal(token)

    def refusal(self, spec: JobSpec, owner: str) -> str | None:
        """Why this owner may not run this job; None if it may."""
        if owner == _LOCAL and self._open_on_loopback:
            return None
        token = next((each for each in self._tokens.values() if each.name == owner), None)
        if token is None:
            return f"{owner or 'the owner'} has no token any more"
        try:
            check_namespace(_principal(token), spec.namespace)
        except (Forbidden, Unauthorised) as error:
            return str(error)
        return None

    def _find(self, bearer: str) -> Token | None:
        wanted = digest(bearer)
        token = self._tokens.get(wanted)
        return token if token is not None and hmac.compare_digest(token.digest, wanted) else None

    async def _refresh_for_unknown(self) -> None:
        """Refresh for a token that may be new, but not so often that guesses load the store."""
        async with self._refreshing:
            if asyncio.get_running_loop().time() - self._refreshed_at >= _REFRESH_AGAIN_S:
                await self._try_refresh()

    async def _try_refresh(self) -> None:
        try:
            await self.refresh()
        except StoreError:
            self._refreshed_at = asyncio.get_running_loop().time()


def _principal(token: Token) -> Principal:
    if token.role not in ROLES:
        raise Unauthorised(f"token {token.name} has an unknown role, {token.role}")
    return Principal(token.name, cast("Role", token.role), token.namespaces)
