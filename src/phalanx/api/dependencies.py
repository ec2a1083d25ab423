"""The jobs that one runs after, and those that run after it."""

from typing import Any

from litestar import Request

from phalanx.api.auth import principal_of
from phalanx.api.services import services_of
from phalanx.core.model import Job
from phalanx.engine.turn import Turn
from phalanx.wire.jobs import Relative


async def relatives(
    request: Request[Any, Any, Any], job: Job
) -> tuple[tuple[Relative, ...], tuple[Relative, ...]]:
    """Those before it, and those after it that have not finished. Of jobs that the caller may not
    see nothing is told but the id, which it has given itself."""
    services, principal = services_of(request), principal_of(request)

    def live(turn: Turn) -> tuple[dict[str, Job], list[Job]]:
        gangs = turn.cluster.gangs
        before = {name: gangs[name].job for name in job.spec.after if name in gangs}
        after = [gangs[name].job for name in sorted(turn.cluster.followers.get(job.id, ()))]
        return before, after

    before, after = await services.engine.do(live)
    for name in job.spec.after:
        if name not in before and (row := await services.store.job(name)) is not None:
            before[name] = row[0]
    return (
        tuple(
            _shown(before[name])
            if name in before and principal.may_see(before[name].spec.namespace)
            else Relative(name)
            for name in job.spec.after
        ),
        tuple(_shown(each) for each in after if principal.may_see(each.spec.namespace)),
    )


def _shown(job: Job) -> Relative:
    return Relative(job.id, job.name, job.phase)
