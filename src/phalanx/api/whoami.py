"""The principal of the caller: its name, its role and its namespaces."""

from typing import Any

from litestar import Request, get

from phalanx.api.auth import JOINING, USERS, WORKERS, principal_of
from phalanx.wire.identity import Identity


@get("/whoami", opt={"allowed": (*USERS, *WORKERS, *JOINING)}, summary="Show the caller's identity")
async def whoami(request: Request[Any, Any, Any]) -> Identity:
    """The name, the role and the namespaces of the caller's token."""
    principal = principal_of(request)
    return Identity(
        name=principal.name,
        role=principal.role,
        namespaces=principal.confined_to,
        namespace=principal.only_namespace or "default",
    )


ROUTES = [whoami]
