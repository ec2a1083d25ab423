"""Admission: what stands before every way in for a job, and before changes by operators.

The token's role and namespaces come first, then the policies of the cluster. Changes of objects
that a path names are decided in `api.route_policies`, and the runs of crons in
`policy.cron_admission`.
"""

from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from msgspec.structs import replace

from phalanx.api.auth import principal_of
from phalanx.api.dependencies import check_references
from phalanx.api.lookup import find
from phalanx.api.services import services_of
from phalanx.core.errors import Invalid
from phalanx.core.model import GangMembers, Queue
from phalanx.core.spec.job import JobSpec
from phalanx.engine.gang_inputs import ImagePreview
from phalanx.engine.submissions import Submission
from phalanx.policy.access_requests import request_to_manage


async def admit(request: Request[Any, Any, Any], spec: JobSpec) -> tuple[str, ...]:
    """The names of the policies that permit the job. Raises Forbidden or Invalid."""
    await check_references(request, spec)
    services, principal = services_of(request), principal_of(request)
    await services.objects.begin_term(services.engine.term)
    queues: dict[str, Queue] = {}
    if services.authorizer.has_policies:
        queues = await services.engine.do(lambda turn: dict(turn.cluster.queues))
    return services.authorizer.check_job(principal, spec, queues)


async def admit_and_pin(
    request: Request[Any, Any, Any], spec: JobSpec, part: GangMembers | None
) -> Submission:
    """The submission of a job that is admitted, with the digests of its images. The images of a
    cron are pinned at each run. Raises Forbidden or Invalid."""
    policies = await admit(request, spec)
    inputs = services_of(request).inputs
    is_pinned = inputs is not None and spec.schedule is None
    pinned = await inputs.pinned(spec) if inputs is not None and is_pinned else {}
    return Submission(spec, principal_of(request).name, part, policies, pinned)


async def admit_plan(
    request: Request[Any, Any, Any], spec: JobSpec, *, is_cron: bool
) -> ImagePreview:
    """What is known about the images of a job that is admitted. An image that a submission would be
    refused for is refused, except in a cron, whose images are pinned at each run.

    Raises Forbidden or Invalid.
    """
    await admit(request, spec)
    inputs = services_of(request).inputs
    if inputs is None:
        return ImagePreview()
    try:
        return await inputs.preview(spec)
    except Invalid as error:
        if not is_cron:
            raise
        return ImagePreview("; ".join(f"{each.path} {each.message}" for each in error.problems))


async def admit_priority(request: Request[Any, Any, Any], job_id: str, priority: int) -> None:
    """Raise Forbidden unless the policies permit the job with another priority."""
    if services_of(request).authorizer.has_policies:
        spec = (await find(request, job_id)).job.spec
        await admit(request, replace(spec, priority=priority, after=(), afterany=(), afternotok=()))


async def check_managed(
    connection: ASGIConnection[Any, Any, Any, Any], kind: str, *names: str
) -> None:
    """Raise Forbidden unless the policies permit the caller to change queues or workers."""
    services, principal = services_of(connection), principal_of(connection)
    await services.objects.begin_term(services.engine.term)
    services.authorizer.check(request_to_manage(principal, kind, name) for name in names)
