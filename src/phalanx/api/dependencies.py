"""The jobs that a job depends on, and the jobs that depend on it."""

from typing import Any

from litestar import Request

from phalanx.api.auth import principal_of
from phalanx.api.services import services_of
from phalanx.core.errors import Invalid
from phalanx.core.handlers.submit import missing_dependencies
from phalanx.core.model import Job
from phalanx.core.spec.job import JobSpec
from phalanx.engine.dependency_lookup import full_name
from phalanx.engine.turn import Turn
from phalanx.identity.principal import check_namespaces_of
from phalanx.wire.jobs import RelatedJob


async def check_references(request: Request[Any, Any, Any], spec: JobSpec) -> None:
    """Raise Forbidden or Invalid if a job names a namespace or a job that the caller may not see.

    For a job that it may not see, the answer is that of a job that does not exist.
    """
    services, principal = services_of(request), principal_of(request)
    check_namespaces_of(principal, spec)
    if not spec.dependencies or principal.confined_to is None:
        return
    summaries = await services.store.job_summaries(spec.dependencies)

    def is_hidden(job: str) -> bool:
        namespace = summaries[job].namespace if job in summaries else full_name(spec, job)[0]
        return not principal.may_see(namespace)

    problems = missing_dependencies(spec, is_hidden)
    if problems:
        raise Invalid(problems)


async def related_jobs(
    request: Request[Any, Any, Any], job: Job
) -> tuple[tuple[RelatedJob, ...], tuple[RelatedJob, ...]]:
    """The jobs that this one depends on, and its unfinished dependants.

    A dependency that the caller may not see is shown by its id alone; such a dependant is left out.
    """
    services, principal = services_of(request), principal_of(request)

    def live(turn: Turn) -> tuple[dict[str, Job], list[Job]]:
        gangs = turn.cluster.gangs
        before = {name: gangs[name].job for name in job.spec.dependencies if name in gangs}
        after = [gangs[name].job for name in turn.cluster.followers.get(job.id, ())]
        return before, sorted(after, key=lambda each: (each.created_at, each.id))

    before, after = await services.engine.do(live)
    for name in job.spec.dependencies:
        if name not in before and (row := await services.store.job(name)) is not None:
            before[name] = row[0]
    return (
        tuple(
            _related(before[name])
            if name in before and principal.may_see(before[name].spec.namespace)
            else RelatedJob(name)
            for name in job.spec.dependencies
        ),
        tuple(_related(each) for each in after if principal.may_see(each.spec.namespace)),
    )


def _related(job: Job) -> RelatedJob:
    return RelatedJob(job.id, job.name, job.phase)
