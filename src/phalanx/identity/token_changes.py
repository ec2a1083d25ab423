"""Changes of tokens: create, rotate and revoke them, and give workers credentials of their own.

Every change is one write that names what it replaces, so servers and commands can change tokens at
the same time.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.errors import Conflict, Unknown
from phalanx.core.time_units import HOUR, Micros
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Forbidden, Principal, check_worker
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import (
    SESSION,
    NewToken,
    TokenRequest,
    credential_name,
    digest,
    new_credential,
    new_secret,
    new_token,
    shown_prefix,
)
from phalanx.store.protocol import AuditRecord, Store, Token

#: How often a change is tried again after another one of the same token.
_TRIES = 5
#: How long a revoked credential is kept, to tell its worker.
_REVOKED_KEPT: Micros = 30 * 24 * HOUR


class ListedToken(NamedTuple):
    token: Token
    used_at: Micros | None


class TokenChanges:
    def __init__(
        self,
        store: Store,
        registry: TokenRegistry,
        clock: Callable[[], Micros] = wall_clock,
        *,
        keep_admin: bool = False,
    ) -> None:
        """`keep_admin` refuses to revoke the last admin token: for callers who have no access to
        the database, and could not create another one."""
        self._keep_admin = keep_admin
        self._revoking = asyncio.Lock()
        self._store = store
        self._registry = registry
        self._clock = clock

    # Tokens

    async def create(self, request: TokenRequest, audit: AuditRecord | None = None) -> NewToken:
        """Raises Invalid, and Conflict if the name is taken."""
        created = new_token(request, self._clock())
        version = await self._store.add_token(created.token, audit)
        if version is None:
            raise Conflict(
                f"token {request.name} exists already; revoke it first with `phalanx token revoke"
                f" {request.name}`, or replace its secret with `phalanx token rotate"
                f" {request.name}`"
            )
        self._registry.put(created.token, version)
        return created

    async def list(self) -> list[ListedToken]:
        """All tokens and credentials, by name."""
        uses = await self._store.token_uses()
        return [
            ListedToken(token, self._registry.used_at(token.name) or uses.get(token.name))
            for token in await self._store.tokens()
        ]

    async def rotate(self, name: str, audit: AuditRecord | None = None) -> NewToken:
        """Give a token a new secret and its lifetime anew. Raises Unknown or Conflict.

        The previous secret stays valid until the new one is used.
        """
        secret = new_secret()

        def rotated(token: Token) -> Token:
            if token.role == "agent":
                raise Conflict(f"{name} is the credential of a worker, which renews it by itself")
            if token.role == SESSION:
                raise Conflict(f"{name} is the session of a browser; sign in there again")
            now = self._clock()
            lifetime = None if token.expires_at is None else token.expires_at - token.created_at
            return replace(
                token,
                next_digest=digest(secret),
                prefix=shown_prefix(secret),
                created_at=now,
                expires_at=None if lifetime is None else now + lifetime,
            )

        return NewToken(secret, await self._change(name, rotated, audit))

    async def revoke(self, name: str, audit: AuditRecord | None = None) -> None:
        """Refuse a token from now on. Raises Unknown, and Conflict if it is the last admin token.

        A credential is kept as revoked, so that its worker learns of it. Its name can join again.
        """
        async with self._revoking:
            await self._revoke(name, audit)
        await self._forget_revoked()

    async def _revoke(self, name: str, audit: AuditRecord | None) -> None:
        token = await self._named(name)
        if self._keep_admin and token.role == "admin":
            await self._check_other_admin(token)
        if token.role == "agent":
            await self._change(name, lambda each: replace(each, revoked_at=self._clock()), audit)
        elif (version := await self._store.remove_token(name, audit)) is not None:
            self._registry.drop(name, version)
        else:
            raise _unknown(name)

    async def _check_other_admin(self, token: Token) -> None:
        """Raises Conflict unless an admin token remains that lasts as long."""
        now = self._clock()
        for other in await self._store.tokens():
            if other.role != "admin" or other.name == token.name:
                continue
            if other.expires_at is None or (
                token.expires_at is not None and other.expires_at > now
            ):
                return
        kind = "last admin token"
        if token.expires_at is None:
            kind += " that does not expire"
        raise Conflict(
            f"token {token.name} is the {kind}; create another first with `phalanx token create"
            f" NAME --role admin`, or replace its secret with `phalanx token rotate {token.name}`"
        )

    async def _forget_revoked(self) -> None:
        before = self._clock() - _REVOKED_KEPT
        for token in await self._store.tokens():
            if token.revoked_at is not None and token.revoked_at < before:
                await self._store.remove_token(token.name)

    # Credentials

    async def join(
        self,
        principal: Principal,
        worker: str,
        secret_digest: str,
        audit: AuditRecord | None = None,
    ) -> Token:
        """Make a secret the credential of a worker. Asking again with the same secret is harmless.

        Raises Forbidden if the join token is not for this worker or has no joins left, and Conflict
        if the worker has a credential already.
        """
        check_worker(principal, worker)
        name = credential_name(worker)
        for _ in range(_TRIES):
            current = self._registry.named(name)
            if current is not None and current.digest != secret_digest:
                await self._registry.refresh()  # it may have been revoked just now
                current = self._registry.named(name)
            if current is not None and current.revoked_at is None:
                if current.digest == secret_digest:
                    return current
                raise Conflict(
                    f"worker {worker} has joined already, with another credential; if its state"
                    f" directory is lost, an admin can run `phalanx token revoke {name}`, and then"
                    " it can join again"
                )
            if self._registry.has_digest(secret_digest):
                raise Conflict("this secret has been used already; join with a new one")
            credential = new_credential(worker, secret_digest, self._clock())
            if await self._take_join(principal):
                if current is None:
                    version = await self._store.add_token(credential, audit)
                else:
                    version = await self._store.replace_token(current, credential, audit)
                if version is not None:
                    self._registry.put(credential, version)
                    return credential
            await self._registry.refresh()
        raise _busy(name)

    async def _take_join(self, principal: Principal) -> bool:
        """Count a use of the join token; False if it changed in the meantime. Raises Forbidden."""
        token = self._registry.named(principal.name)
        if token is None or token.joins_left is None:
            return True
        if token.joins_left == 0:
            raise Forbidden(
                f"the token {token.name} has no joins left; ask an admin for another join token"
            )
        after = replace(token, joins_left=token.joins_left - 1)
        version = await self._store.replace_token(token, after)
        if version is not None:
            self._registry.put(after, version)
        return version is not None

    async def renew(self, worker: str, secret_digest: str) -> None:
        """Give a worker a new secret. The previous one stays valid until the new one is used.

        Raises Unknown or Conflict.
        """

        def renewed(token: Token) -> Token:
            if token.revoked_at is not None:
                raise Conflict(f"the credential of worker {worker} was revoked")
            if secret_digest in (token.digest, token.next_digest):
                return token
            if self._registry.has_digest(secret_digest):
                raise Conflict("this secret has been used already; send the digest of a new one")
            return replace(token, next_digest=secret_digest)

        await self._change(credential_name(worker), renewed)

    async def revoke_worker(self, worker: str) -> bool:
        """Revoke the credential of a worker. False if it has none that is valid."""
        name = credential_name(worker)
        await self._registry.refresh()
        token = self._registry.named(name)
        if token is None or token.revoked_at is not None:
            return False
        await self.revoke(name)
        return True

    # Writing

    async def _named(self, name: str) -> Token:
        await self._registry.refresh()
        token = self._registry.named(name)
        if token is None:
            raise _unknown(name)
        return token

    async def _change(
        self, name: str, change: Callable[[Token], Token], audit: AuditRecord | None = None
    ) -> Token:
        """Replace a token by what `change` returns for it. Raises Unknown or Conflict."""
        for _ in range(_TRIES):
            before = self._registry.named(name) or await self._named(name)
            after = change(before)
            if after == before:
                return before
            version = await self._store.replace_token(before, after, audit)
            if version is not None:
                self._registry.put(after, version)
                return after
            await self._registry.refresh()
        raise _busy(name)


def _unknown(name: str) -> Unknown:
    return Unknown(f"there is no token {name[:100]}; list the tokens with `phalanx token list`")


def _busy(name: str) -> Conflict:
    return Conflict(f"token {name} is being changed by other commands; try again")
