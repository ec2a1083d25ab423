"""Which action of the policies decides about each route that changes something.

A route names the action in its options. If its path names the object, the policies are asked
before the route is called; routes whose body names it call `api.admission`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from phalanx.api.auth import principal_of
from phalanx.api.lookup import find
from phalanx.api.services import services_of
from phalanx.core.model import cron_key
from phalanx.identity.principal import check_namespace
from phalanx.policy.access_requests import (
    AccessRequest,
    request_on_job,
    request_on_secret,
    request_to_manage,
)

#: The key of a route's option with the name of the action.
DECIDED_BY = "decided_by"

Connection = ASGIConnection[Any, Any, Any, Any]


async def check_policies(connection: Connection, handler: BaseRouteHandler) -> None:
    """Raise PolicyDenied unless the policies permit the change of the object in the path."""
    services, action = services_of(connection), handler.opt.get(DECIDED_BY, "")
    request_of = _REQUESTS.get(action)
    if request_of is None or not connection.path_params:
        return
    await services.objects.begin_term(services.engine.term)
    asked = await request_of(connection, action) if services.authorizer.has_policies else None
    if asked is not None:
        services.authorizer.check([asked])


async def _on_job(connection: Connection, action: str) -> AccessRequest:
    """Raises Unknown for a job that the caller may not see."""
    job = (await find(connection, connection.path_params["job_id"])).job
    return request_on_job(principal_of(connection), action, job.spec, job.owner)


async def _on_cron(connection: Connection, action: str) -> AccessRequest | None:
    """None for a cron that does not exist or that the caller may not see."""
    principal, names = principal_of(connection), connection.path_params
    crons = await services_of(connection).engine.do(lambda turn: dict(turn.cluster.crons))
    cron = crons.get(cron_key(names["namespace"], names["name"]))
    if cron is None or not principal.may_see(names["namespace"]):
        return None
    return request_on_job(principal, action, cron.spec, cron.owner)


async def _on_secret(connection: Connection, action: str) -> AccessRequest:
    """Raises Forbidden for a namespace that is not the caller's."""
    principal, names = principal_of(connection), connection.path_params
    check_namespace(principal, names["namespace"])
    return request_on_secret(principal, names["namespace"], names["name"])


async def _on_queue(connection: Connection, action: str) -> AccessRequest:
    return request_to_manage(principal_of(connection), "queue", connection.path_params["name"])


async def _on_worker(connection: Connection, action: str) -> AccessRequest:
    name = connection.path_params["worker_id"]
    return request_to_manage(principal_of(connection), "worker", name)


_REQUESTS: dict[str, Callable[[Connection, str], Awaitable[AccessRequest | None]]] = {
    "CancelJob": _on_job,
    "ManageJob": _on_job,
    "ManageCron": _on_cron,
    "ManageSecret": _on_secret,
    "ManageQueue": _on_queue,
    "ManageWorker": _on_worker,
}
