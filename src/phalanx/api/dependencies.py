"""The jobs that a job depends on, and the jobs that depend on it."""

from typing import Any

from litestar import Request

from phalanx.api.auth import principal_of
from phalanx.api.services import services_of
from phalanx.core.model import Job
from phalanx.engine.turn import Turn
from phalanx.wire.jobs import RelatedJob


async def related_jobs(
    request: Request[Any, Any, Any], job: Job
) -> tuple[tuple[RelatedJob, ...], tuple[RelatedJob, ...]]:
    """The jobs that this one depends on, and its unfinished dependants.

    A dependency that the caller may not see is shown by its id alone; such a dependant is left out.
    """
    services, principal = services_of(request), principal_of(request)

    def live(turn: Turn) -> tuple[dict[str, Job], list[Job]]:
        gangs = turn.cluster.gangs
        before = {name: gangs[name].job for name in job.spec.after if name in gangs}
        after = [gangs[name].job for name in turn.cluster.followers.get(job.id, ())]
        return before, sorted(after, key=lambda each: (each.created_at, each.id))

    before, after = await services.engine.do(live)
    for name in job.spec.after:
        if name not in before and (row := await services.store.job(name)) is not None:
            before[name] = row[0]
    return (
        tuple(
            _related(before[name])
            if name in before and principal.may_see(before[name].spec.namespace)
            else RelatedJob(name)
            for name in job.spec.after
        ),
        tuple(_related(each) for each in after if principal.may_see(each.spec.namespace)),
    )


def _related(job: Job) -> RelatedJob:
    return RelatedJob(job.id, job.name, job.phase)
