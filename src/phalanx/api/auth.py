"""Authorisation: the roles and namespaces of a caller, and which routes they allow.

An `Authenticator` finds the principal of a token; this module only applies its rights.
"""

import ipaddress
from functools import lru_cache
from typing import Literal, Protocol

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from phalanx.api.services import services_of

Role = Literal["user", "worker", "admin"]

#: A token with this namespace has access to all namespaces.
EVERY = "*"
#: The key of a route's option with the roles that may call it; admins may call every route.
ALLOWED = "allowed"

OPEN: tuple[Role, ...] = ()
USERS: tuple[Role, ...] = ("user",)
WORKERS: tuple[Role, ...] = ("worker",)
ANY_ROLE: tuple[Role, ...] = ("user", "worker")
ADMINS: tuple[Role, ...] = ("admin",)


class Principal(msgspec.Struct, frozen=True):
    name: str
    role: Role
    namespaces: tuple[str, ...] = ()

    def may_see(self, namespace: str) -> bool:
        return self.role != "user" or EVERY in self.namespaces or namespace in self.namespaces

    @property
    def confined_to(self) -> tuple[str, ...] | None:
        """The namespaces that it has access to; None means all."""
        return None if self.role != "user" or EVERY in self.namespaces else self.namespaces


class Unauthorised(Exception):  # noqa: N818
    """The token is missing or unknown."""


class Forbidden(Exception):  # noqa: N818
    """The token's role or namespaces do not allow this."""


class Authenticator(Protocol):
    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        """The principal of a token, or of a caller without one. Raises Unauthorised."""


ADMIN = Principal("", "admin")


async def identify(auth: Authenticator | None, scope: Scope) -> Principal:
    """The principal of a request. Raises Unauthorised."""
    if auth is None:
        return ADMIN
    return await auth.principal(bearer_of(scope), loopback=_is_loopback(scope))


def check_role(principal: Principal, allowed: tuple[Role, ...]) -> None:
    """Raise Forbidden unless the principal has one of the roles, or is an admin."""
    if principal.role == "admin" or principal.role in allowed:
        return
    wanted = " or ".join(("admin", *(role for role in allowed if role != "admin")))
    raise Forbidden(
        f"the token {principal.name} has the role {principal.role}; this requires {wanted}"
    )


def check_namespace(principal: Principal, namespace: str) -> None:
    """Raise Forbidden unless the principal has access to the namespace."""
    if not principal.may_see(namespace):
        own = ", ".join(principal.namespaces) or "none"
        raise Forbidden(
            f"{principal.name} may not use namespace {namespace}; its namespaces are: {own}"
        )


async def guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
    """Check the caller's role before every route that is not open to all."""
    allowed: tuple[Role, ...] = handler.opt.get(ALLOWED, OPEN)
    if not allowed:
        return
    principal = await identify(services_of(connection).auth, connection.scope)
    check_role(principal, allowed)
    connection.scope["state"]["principal"] = principal


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


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and _is_loopback_address(client[0])


@lru_cache  # called with every request, and parsing an address is slow
def _is_loopback_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
