"""Bearer tokens: making them, and telling whose a token is.

A token is 256 bits of chance, so its plain SHA-256 tells nothing about it, and looking a digest up
tells nothing but whether the whole token was right.
"""

import asyncio
import hashlib
import hmac
import secrets
from typing import NamedTuple, cast

from phalanx.api.auth import Forbidden, Principal, Role, Unauthorised, check_namespace
from phalanx.core.spec.job import JobSpec, Micros
from phalanx.store.protocol import Store, StoreError, Token

#: Whoever speaks on the host of an open server.
_LOCAL = "local"
ROLES = ("user", "worker", "admin")
_MARK = "phx_"
_SHOWN = len(_MARK) + 6

#: How often a server looks whether tokens were added or revoked.
_LOOK_S = 2.0
#: How soon it may look again because of a token that it does not know.
_LOOK_AGAIN_S = 0.5


class Minted(NamedTuple):
    secret: str  #: shown once, kept nowhere
    token: Token


def mint(name: str, role: str, namespaces: tuple[str, ...], now: Micros) -> Minted:
    secret = _MARK + secrets.token_urlsafe(32)
    return Minted(secret, Token(name, role, digest(secret), secret[:_SHOWN], now, namespaces))


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class TokenRegistry:
    """Tells who speaks, by what the store had a moment ago."""

    def __init__(self, store: Store, *, open_on_loopback: bool) -> None:
        self._store = store
        self._open_on_loopback = open_on_loopback
        self._tokens: dict[str, Token] = {}
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    async def look(self) -> None:
        """Take over what the store has. Raises StoreError, and then what was known stays."""
        self._tokens = {token.digest: token for token in await self._store.tokens()}
        self._looked_at = asyncio.get_running_loop().time()

    async def keep_looking(self) -> None:
        """For ever; a store that does not answer is asked again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._try_to_look()

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        """Raises Unauthorised."""
        if bearer is None:
            if loopback and self._open_on_loopback:
                return Principal(_LOCAL, "admin", ())
            raise Unauthorised("a token is needed; send it as `Authorization: Bearer TOKEN`")
        token = self._find(bearer)
        if token is None:
            await self._look_again()
            token = self._find(bearer)
        if token is None:
            raise Unauthorised("the token is not known; it may have been revoked")
        return _principal(token)

    def refusal(self, spec: JobSpec, owner: str) -> str | None:
        """Why an owner may no longer run this; None if it may."""
        if owner == _LOCAL and self._open_on_loopback:
            return None
        token = next((each for each in self._tokens.values() if each.name == owner), None)
        if token is None:
            return f"{owner or 'its owner'} has no token any more"
        try:
            check_namespace(_principal(token), spec.namespace)
        except (Forbidden, Unauthorised) as error:
            return str(error)
        return None

    def _find(self, bearer: str) -> Token | None:
        asked = digest(bearer)
        token = self._tokens.get(asked)
        return token if token is not None and hmac.compare_digest(token.digest, asked) else None

    async def _look_again(self) -> None:
        """A token that is not known may be new; but guessing must not keep the store busy."""
        async with self._looking:
            if asyncio.get_running_loop().time() - self._looked_at >= _LOOK_AGAIN_S:
                await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except StoreError:
            self._looked_at = asyncio.get_running_loop().time()


def _principal(token: Token) -> Principal:
    if token.role not in ROLES:
        raise Unauthorised(f"token {token.name} has the role {token.role}, which is not known here")
    return Principal(token.name, cast("Role", token.role), token.namespaces)
