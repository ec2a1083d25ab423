"""Authorisation: the principal of a request, and the roles that each route allows.

An `Authenticator` finds the principal of a token; this module only applies its rights.
"""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Protocol

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from phalanx.api.certificates import check_certificate
from phalanx.api.services import services_of
from phalanx.api.session_cookie import check_own_page, session_of
from phalanx.identity.principal import Principal, Role, Unauthorised, check_role

#: The key of a route's option with the roles that may call it; admins may call every route.
ALLOWED = "allowed"

OPEN: tuple[Role, ...] = ()
USERS: tuple[Role, ...] = ("user",)
#: Workers of the plain protocol, and agents, each with a credential of its own.
PLAIN_WORKERS: tuple[Role, ...] = ("worker",)
AGENTS: tuple[Role, ...] = ("agent",)
WORKERS: tuple[Role, ...] = ("worker", "agent")
JOINING: tuple[Role, ...] = ("join",)
ADMINS: tuple[Role, ...] = ("admin",)


class Authenticator(Protocol):
    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        """The principal of a token, or of a caller without one. Raises Unauthorised."""


ADMIN = Principal("", "admin")


async def identify(auth: Authenticator | None, scope: Scope) -> Principal:
    """The principal of a request, which is noted in its state. Raises Unauthorised."""
    principal = ADMIN
    if auth is not None:
        principal = await _principal(auth, scope)
    scope["state"]["principal"] = principal
    return principal


async def _principal(auth: Authenticator, scope: Scope) -> Principal:
    """The principal of the token, else of the session, else of a caller without either."""
    bearer = bearer_of(scope)
    session = session_of(scope) if bearer is None else None
    if session is not None:
        try:
            principal = await auth.principal(session, loopback=False)
        except Unauthorised:
            pass  # perhaps of another cluster on this host, whose cookies browsers send here too
        else:
            check_own_page(scope)
            return principal
    return await auth.principal(bearer, loopback=_is_loopback(scope))


async def check_caller(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
    """Check the caller's role before every route that is not open to all."""
    allowed: tuple[Role, ...] = handler.opt.get(ALLOWED, OPEN)
    if not allowed:
        return
    services = services_of(connection)
    principal = await identify(services.auth, connection.scope)
    check_role(principal, allowed)
    check_certificate(services.certificates, principal, connection.scope)


async def while_authorised(
    connection: ASGIConnection,  # type: ignore[type-arg]
    parts: AsyncGenerator[bytes, None],
) -> AsyncIterator[bytes]:
    """The parts of a stream, until the token of its reader is revoked or expires."""
    auth = services_of(connection).auth
    async with aclosing(parts):
        while True:
            coming = asyncio.ensure_future(_next(parts))
            try:
                await wait_while_authorised(connection, coming)
                await identify(auth, connection.scope)
            except Unauthorised:
                return
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            part = coming.result()
            if part is None:
                return
            yield part


async def _next(parts: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(parts, None)


async def wait_while_authorised(
    connection: ASGIConnection,  # type: ignore[type-arg]
    *futures: asyncio.Future[Any],
) -> None:
    """Wait until one of the futures is done.

    Raises Unauthorised soon after the token of the caller is revoked or expires.
    """
    services = services_of(connection)
    while True:
        done, _ = await asyncio.wait(
            futures,
            timeout=services.info.check_tokens_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if done:
            return
        await identify(services.auth, connection.scope)


def principal_of(connection: ASGIConnection) -> Principal:  # type: ignore[type-arg]
    principal: Principal = connection.scope["state"]["principal"]
    return principal


def bearer_of(scope: Scope) -> str | None:
    """The token of a request; None without an Authorization header.

    Raises Unauthorised for any other Authorization: such a caller must not pass for one without.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if not values:
        return None
    scheme, _, token = values[0].decode("latin-1").partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer":
        raise Unauthorised("Authorization is not a token; send it once, as `Bearer TOKEN`")
    return token.strip()


def is_private(scope: Scope) -> bool:
    """Whether other hosts cannot read the connection: it is TLS, or on loopback."""
    return scope["scheme"] == "https" or _is_loopback(scope)


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and _is_loopback_address(client[0])


@lru_cache  # called with every request, and parsing an address is slow
def _is_loopback_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
