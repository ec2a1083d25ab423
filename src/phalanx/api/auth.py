"""Who is asking, and what they may ask: users in their namespaces, workers for workers, admins.

Who a token belongs to is somebody else's business; this module only holds what follows from it.
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

#: A namespace that stands for all of them.
EVERY = "*"
#: The key of a route's option that says who may call it; admins may call everything.
ALLOWED = "allowed"

OPEN: tuple[Role, ...] = ()
USERS: tuple[Role, ...] = ("user",)
WORKERS: tuple[Role, ...] = ("worker",)
ANYBODY: tuple[Role, ...] = ("user", "worker")
ADMINS: tuple[Role, ...] = ("admin",)


class Principal(msgspec.Struct, frozen=True):
    name: str
    role: Role
    namespaces: tuple[str, ...] = ()

    def may_see(self, namespace: str) -> bool:
        return self.role != "user" or EVERY in self.namespaces or namespace in self.namespaces

    @property
    def confined_to(self) -> tuple[str, ...] | None:
        """The namespaces outside of which it sees nothing; None if it sees all."""
        return None if self.role != "user" or EVERY in self.namespaces else self.namespaces


class Unauthorised(Exception):  # noqa: N818
    """There is no token, or not one that we know."""


class Forbidden(Exception):  # noqa: N818
    """The token is known, and does not reach this far."""


class Authenticator(Protocol):
    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        """Whose token this is. Raises Unauthorised."""


ADMIN = Principal("", "admin")


async def identify(auth: Authenticator | None, scope: Scope) -> Principal:
    """Who sends this request. Raises Unauthorised."""
    if auth is None:
        return ADMIN
    return await auth.principal(_bearer(scope), loopback=_is_loopback(scope))


def check_role(principal: Principal, allowed: tuple[Role, ...]) -> None:
    if principal.role == "admin" or principal.role in allowed:
        return
    wanted = " or ".join(("admin", *(role for role in allowed if role != "admin")))
    raise Forbidden(
        f"{principal.name} has a token of a {principal.role}; this takes one of {wanted}"
    )


def check_namespace(principal: Principal, namespace: str) -> None:
    if not principal.may_see(namespace):
        mine = ", ".join(principal.namespaces) or "none"
        raise Forbidden(
            f"{principal.name} may not use namespace {namespace}; its namespaces are: {mine}"
        )


async def guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
    """Runs before every route that is not open."""
    allowed: tuple[Role, ...] = handler.opt.get(ALLOWED, OPEN)
    if not allowed:
        return
    principal = await identify(services_of(connection).auth, connection.scope)
    check_role(principal, allowed)
    connection.scope["state"]["principal"] = principal


def principal_of(connection: ASGIConnection) -> Principal:  # type: ignore[type-arg]
    found: Principal = connection.scope["state"]["principal"]
    return found


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if scheme.lower() == "bearer" else None
    return None


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return True  # a socket in the file system: its permissions have decided already
    return _is_loopback_address(client[0])


@lru_cache  # asked with every request, and reading an address is slow
def _is_loopback_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
