"""The list of audit records."""

from datetime import UTC, datetime
from typing import Annotated, Any

from litestar import Request, get
from litestar.params import QueryParameter

from phalanx.api.auth import ADMINS
from phalanx.api.errors import wrong
from phalanx.api.jobs import Limit, PageCursor
from phalanx.api.services import services_of
from phalanx.core.spec.fields import shown
from phalanx.core.time_units import SECOND, Micros
from phalanx.store.protocol import AuditQuery, AuditRecord
from phalanx.wire.audit import AuditList, AuditView
from phalanx.wire.times import iso_time

_TIME_FORM = "write a time like 2026-01-31T12:00:00Z"

Since = Annotated[str | None, QueryParameter(description="Only records from this time on.")]
Until = Annotated[str | None, QueryParameter(description="Only records before this time.")]
OfPrincipal = Annotated[str | None, QueryParameter(description="Only records of this token.")]
OfNamespace = Annotated[str | None, QueryParameter(description="Only records of this namespace.")]
OfTarget = Annotated[
    str | None, QueryParameter(description="Only records of this job id, or name of an object.")
]


@get("/audit", opt={"allowed": ADMINS}, summary="List the audit, newest first")
async def list_audit(  # noqa: PLR0913, PLR0917
    request: Request[Any, Any, Any],
    since: Since = None,
    until: Until = None,
    principal: OfPrincipal = None,
    namespace: OfNamespace = None,
    target: OfTarget = None,
    limit: Limit = 100,
    cursor: PageCursor = None,
) -> AuditList:
    """Who changed what, from where, and which requests were refused."""
    services = services_of(request)
    services.engine.check_leading()
    query = AuditQuery(_time("since", since), _time("until", until), principal, namespace, target)
    await services.refused_requests.flush()
    try:
        page = await services.store.audit(query, limit=limit, cursor=cursor)
    except ValueError:
        raise wrong("cursor", "is not the cursor of a page; begin again without one") from None
    return AuditList(tuple(_view(record) for record in page.records), page.cursor)


def _time(name: str, given: str | None) -> Micros | None:
    if given is None:
        return None
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise wrong(name, f"is {shown(given)}; {_TIME_FORM}") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        return round(at.timestamp() * SECOND)
    except OverflowError:
        raise wrong(name, f"is {shown(given)}; {_TIME_FORM}") from None


def _view(record: AuditRecord) -> AuditView:
    return AuditView(
        iso_time(record.at),
        record.principal,
        record.role,
        record.remote,
        record.action,
        record.kind,
        record.namespace,
        record.target,
        record.outcome,
        record.code,
        record.request_id,
        record.count,
    )


ROUTES = [list_audit]
