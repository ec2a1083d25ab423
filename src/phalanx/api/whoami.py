"""The principal of the caller: its name, its role and its namespaces."""

from typing import Any

from litestar import Request, get

from phalanx.api.auth import JOINING, USERS, WORKERS, bearer_of, principal_of
from phalanx.api.session_cookie import session_of
from phalanx.identity.principal import Principal
from phalanx.wire.identity import Identity


@get("/whoami", opt={"allowed": (*USERS, *WORKERS, *JOINING)}, summary="Show the caller's identity")
async def whoami(request: Request[Any, Any, Any]) -> Identity:
    """The name, the role and the namespaces of the caller's token."""
    has_cookie = bearer_of(request.scope) is None and session_of(request.scope) is not None
    principal = principal_of(request)
    return identity_of(principal, has_session=has_cookie and bool(principal.token_id))


def identity_of(principal: Principal, *, has_session: bool) -> Identity:
    return Identity(
        name=principal.name,
        role=principal.role,
        namespaces=principal.confined_to,
        namespace=principal.only_namespace or "default",
        has_session=has_session,
    )


ROUTES = [whoami]
