"""Actions of users on jobs: hold, release, requeue, change the priority, retry."""

from functools import partial
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.openapi.spec import Schema
from litestar.params import FromPath, QueryParameter
from msgspec.structs import replace

from phalanx.api import request_body
from phalanx.api.admission import admit, admit_and_pin, admit_priority
from phalanx.api.arrays import Elements, retry_elements
from phalanx.api.audit import note_submitted
from phalanx.api.auth import USERS, principal_of
from phalanx.api.idempotency import IdempotencyKey, claim, request_key
from phalanx.api.lookup import change, find
from phalanx.api.services import services_of
from phalanx.api.views import job_view, submitted_view
from phalanx.core.causes import requeued
from phalanx.core.errors import Conflict, CoreError
from phalanx.core.events import Evicted, HoldChanged, PriorityChanged
from phalanx.core.gang import Gang
from phalanx.core.ids import split_element
from phalanx.core.model import ENDED, Job
from phalanx.core.spec.fields import REQUIRED, Field
from phalanx.core.spec.schema import JOB_FIELDS
from phalanx.engine.submissions import AcceptedJob
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.wire.jobs import JobView, SubmitReply

_PRIORITY = {"priority": Field(JOB_FIELDS["priority"].read, REQUIRED)}
_PRIORITY_BODY = request_body.documented(
    {"priority": Schema(type="integer")},  # type: ignore[arg-type]
    {"priority": 10},
    required=("priority",),
)


Failed = Annotated[
    bool, QueryParameter(description="Run those elements of an array again that have failed.")
]


def _after(turn: Turn, gang: Gang) -> Job:
    """The job after the command's changes."""
    return turn.cluster.gangs[gang.job.id].job


@post(
    "/jobs/{job_id:str}/hold",
    opt={"allowed": USERS, "action": "hold", "decided_by": "ManageJob"},
    status_code=200,
    summary="Put a job on hold",
)
async def hold(request: Request[Any, Any, Any], job_id: FromPath[str]) -> JobView:
    """The job does not start until it is released. Running tasks continue."""
    return await _set_hold(request, job_id, on_hold=True)


@post(
    "/jobs/{job_id:str}/release",
    opt={"allowed": USERS, "action": "release", "decided_by": "ManageJob"},
    status_code=200,
    summary="Release a job from hold",
)
async def release(request: Request[Any, Any, Any], job_id: FromPath[str]) -> JobView:
    return await _set_hold(request, job_id, on_hold=False)


async def _set_hold(
    request: Request[Any, Any, Any], job_id: FromPath[str], *, on_hold: bool
) -> JobView:
    def work(turn: Turn, gang: Gang, by: Principal) -> Job:
        turn.apply(HoldChanged(gang.job.id, on_hold, by.name))
        return _after(turn, gang)

    return job_view(await change(request, job_id, work), principal_of(request))


@post(
    "/jobs/{job_id:str}/requeue",
    opt={"allowed": USERS, "action": "requeue", "decided_by": "ManageJob"},
    status_code=200,
    summary="Stop and requeue a job",
)
async def requeue(
    request: Request[Any, Any, Any], job_id: FromPath[str], key: IdempotencyKey = None
) -> JobView:
    """The job is stopped as in an eviction. This does not count as a failure."""
    async with claim(request, key) as claimed:
        if claimed.earlier is not None:
            return job_view((await find(request, job_id)).job, principal_of(request))

        def work(turn: Turn, gang: Gang, by: Principal) -> Job:
            changes = turn.apply(Evicted(gang.job.id, by.name, requeued(by.name)))
            claimed.use(turn)
            return changes.gangs[gang.job.id].job

        return job_view(await change(request, job_id, work), principal_of(request))


@post(
    "/jobs/{job_id:str}/priority",
    operation_class=_PRIORITY_BODY,
    opt={"allowed": USERS, "action": "set priority", "decided_by": "ManageJob"},
    status_code=200,
    summary="Change the priority of a job",
)
async def set_priority(request: Request[Any, Any, Any], job_id: FromPath[str]) -> JobView:
    fields = await request_body.read_one(request, "a mapping, like {priority: 10}", _PRIORITY)
    await admit_priority(request, job_id, fields["priority"])

    def work(turn: Turn, gang: Gang, by: Principal) -> Job:
        turn.apply(PriorityChanged(gang.job.id, fields["priority"], by.name))
        return _after(turn, gang)

    return job_view(await change(request, job_id, work), principal_of(request))


@post(
    "/jobs/{job_id:str}/retry",
    opt={"allowed": USERS, "action": "retry", "decided_by": "SubmitJob"},
    summary="Submit an ended job again",
)
async def retry(
    request: Request[Any, Any, Any],
    job_id: FromPath[str],
    key: IdempotencyKey = None,
    failed: Failed = False,
    elements: Elements = None,
) -> Response[SubmitReply] | Response[JobView]:
    """A new job with the same specification, without its dependencies.

    With `failed` or `elements`, and for an element: no new job, but these elements of the array
    run again. The array may have ended.
    """
    element = split_element(job_id)
    if failed or elements is not None or element is not None:
        array, some = (job_id, elements) if element is None else element
        return await _retry_in_array(request, array, some, key)
    services, by = services_of(request), principal_of(request)
    old = (await find(request, job_id)).job
    if old.phase not in ENDED:
        raise Conflict(
            f"job {old.id} is {old.phase}; only a job that has ended can be retried; to stop and"
            " requeue it, use requeue"
        )
    spec = replace(old.spec, after=(), afterany=(), afternotok=())
    submission = await admit_and_pin(request, spec, old.members)
    [outcome] = await services.submissions.submit(
        [submission], request_key(request, key), partial(note_submitted, request)
    )
    if not isinstance(outcome, AcceptedJob):
        raise outcome if isinstance(outcome, CoreError) else AssertionError("bug: a run is no cron")
    return Response(
        submitted_view(outcome.job, by, outcome.warnings),
        status_code=201 if outcome.is_new else 200,
        headers={"Location": f"/jobs/{outcome.job.id}"},
    )


async def _retry_in_array(
    request: Request[Any, Any, Any], array_id: str, elements: str | None, key: str | None
) -> Response[JobView]:
    spec = (await find(request, array_id)).job.spec
    await admit(request, replace(spec, after=(), afterany=(), afternotok=()))
    async with claim(request, key, elements or "failed") as claimed:
        view = await retry_elements(request, array_id, elements, claimed)
    return Response(view, status_code=200)


ROUTES = [hold, release, requeue, set_priority, retry]
