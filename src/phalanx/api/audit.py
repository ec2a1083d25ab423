"""The audit: a record of every change and of refused requests.

A route that changes something names its action in its options. Agents' reports are not audited:
they are events of their jobs.
"""

from random import Random
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.types import Scope

from phalanx.api.errors import Refusal, refusal_of, response_of
from phalanx.api.services import Services, services_of
from phalanx.core.model import Job, Queue
from phalanx.core.time_units import Micros
from phalanx.engine.submissions import Accepted, Scheduled
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.store.protocol import AuditOutcome, AuditRecord

#: The key of a route's option with the name of its action.
ACTION = "action"
#: The first part of a path → the kind of its objects.
_KINDS = {
    "jobs": "job",
    "jobs:batch": "job",
    "crons": "cron",
    "queues": "queue",
    "workers": "worker",
    "tokens": "token",
    "session": "token",
    "secrets": "secret",
    "policies": "policy",
}
#: Parameters of paths that name an object.
_TARGETS = ("job_id", "worker_id", "name")
#: The key of a request's state with the object that it names elsewhere.
_NAMED = "audit_target"
#: Tells the records of one moment apart; the generator is seeded by the operating system.
_RANDOM = Random()  # noqa: S311
_ID_BITS = 64


def record_of(
    connection: ASGIConnection[Any, Any, Any, Any],
    at: Micros,
    *,
    kind: str = "",
    namespace: str = "",
    target: str = "",
) -> AuditRecord:
    """The record of a change that this request makes."""
    scope = connection.scope
    action = scope["route_handler"].opt.get(ACTION, "")
    return _record(scope, action, at, kind=kind or _kind(scope), namespace=namespace, target=target)


def note(
    connection: ASGIConnection[Any, Any, Any, Any],
    turn: Turn,
    *,
    kind: str = "",
    namespace: str = "",
    target: str = "",
) -> None:
    """Store a record of this change in the commit of the turn."""
    turn.audit.append(
        record_of(connection, turn.now, kind=kind, namespace=namespace, target=target)
    )


def note_job(connection: ASGIConnection[Any, Any, Any, Any], turn: Turn, job: Job) -> None:
    note(connection, turn, kind="job", namespace=job.spec.namespace, target=job.id)


def note_submitted(
    connection: ASGIConnection[Any, Any, Any, Any], turn: Turn, made: Accepted | Queue
) -> None:
    """Record a job, cron or queue of a file that was submitted."""
    if isinstance(made, Queue):
        note(connection, turn, kind="queue", target=made.name)
    elif isinstance(made, Scheduled):
        spec = made.cron.spec
        note(connection, turn, kind="cron", namespace=spec.namespace, target=spec.name or "")
    else:
        note_job(connection, turn, made.job)


def name_target(scope: Scope, target: str) -> None:
    """Name the object of a request whose route has no such parameter, if it is refused."""
    scope["state"][_NAMED] = target


def note_refusal(services: Services, scope: Scope, action: str, refusal: Refusal) -> None:
    """Count a request that was refused, or whose outcome is unknown."""
    is_denied = refusal.status in (401, 403)
    is_unknown = refusal.status in (500, 504)
    if not is_denied and not (action and (is_unknown or 400 <= refusal.status < 500)):
        return
    given: dict[str, Any] = scope.get("path_params") or {}
    named = scope["state"].get(_NAMED, "")
    target = next((str(given[name]) for name in _TARGETS if name in given), named)
    record = _record(
        scope,
        action or "read",
        services.clock(),
        kind=_kind(scope),
        namespace=str(given.get("namespace", ""))[:100],
        target=target[:100],
    )
    outcome = AuditOutcome.UNKNOWN if is_unknown else AuditOutcome.REFUSED
    services.refused_requests.add(
        msgspec.structs.replace(record, outcome=outcome, code=refusal.info.code)
    )


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response to a request that raised this error, which is recorded."""
    refusal = refusal_of(error, request.scope)
    handler: Any = request.scope.get("route_handler")  # None for a path that does not exist
    action = "" if handler is None else handler.opt.get(ACTION, "")
    note_refusal(services_of(request), request.scope, action, refusal)
    return response_of(refusal)


def _record(  # noqa: PLR0913
    scope: Scope, action: str, at: Micros, *, kind: str, namespace: str, target: str
) -> AuditRecord:
    principal: Principal | None = scope["state"].get("principal")
    client = scope.get("client")
    return AuditRecord(
        id=f"{_RANDOM.getrandbits(_ID_BITS):016x}",
        at=at,
        principal="" if principal is None else principal.name,
        role="" if principal is None else principal.role,
        remote="" if client is None else client[0],
        action=action,
        kind=kind,
        namespace=namespace,
        target=target,
        request_id=scope["state"].get("request_id", ""),
    )


def _kind(scope: Scope) -> str:
    return _KINDS.get(scope["path"].split("/")[1], "")
