"""What would happen, and what would have to: trying a job on the cluster, and why one waits."""

from typing import Any

from litestar import Request, get, post
from litestar.params import FromPath
from msgspec.structs import replace

from phalanx.api import manifests
from phalanx.api.auth import USERS, check_namespace, principal_of
from phalanx.api.errors import wrong
from phalanx.api.forecast import (
    JobForecast,
    alternative_views,
    listed,
    message,
    outlook,
    placement_views,
    start_view,
    victim_views,
)
from phalanx.api.lookup import find
from phalanx.api.manifests import IgnoreImage, IgnoreUnsupported, settings_of
from phalanx.api.services import services_of
from phalanx.api.submit import JOB_BODY
from phalanx.api.views import reason_view, warning_views
from phalanx.core.cluster import Cluster
from phalanx.core.events import Submitted
from phalanx.core.model import Job, Phase
from phalanx.core.reasons import (
    Fragmented,
    NeverFits,
    NoNodeMatches,
    NotEnough,
    QueueLimit,
    Reason,
    members_reason,
)
from phalanx.core.spec.job import Micros
from phalanx.core.warnings import AnyWarning, above_limit
from phalanx.engine.turn import Turn
from phalanx.plan.explain.whatif import remedy
from phalanx.wire.plan import PlanView, Why

#: The id of the job that is tried out. No other job has it: ids that are drawn contain no l.
_PLANNED = "j-planned"


@post(
    "/plan",
    operation_class=JOB_BODY,
    opt={"allowed": USERS},
    status_code=200,
    summary="Say what would happen if this job were submitted now",
)
async def plan_only(
    request: Request[Any, Any, Any],
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
) -> PlanView:
    """Nothing is kept."""
    services, principal = services_of(request), principal_of(request)
    settings = settings_of(
        services,
        ignore_image=ignore_image,
        ignore_unsupported=ignore_unsupported,
        whole_gangs=True,
    )
    _, found = await manifests.read(request, settings)
    if len(found.jobs) != 1 or found.queues:
        raise wrong("", f"the body has {len(found.jobs)} jobs; plan one job at a time")
    spec = replace(found.jobs[0], schedule=None)  # what a run would do
    check_namespace(principal, spec.namespace)
    ended = {}
    for dependency in spec.after:
        row = await services.store.job(dependency)
        if row is not None and not row[0].is_live:
            ended[dependency] = row[0].phase

    def scratch(turn: Turn) -> tuple[str, Cluster, Micros, tuple[AnyWarning, ...]]:
        cluster, job = turn.cluster.twin(), _PLANNED
        cluster.apply(Submitted(job, spec, ended=ended), turn.now)
        return job, cluster, turn.now, services.advice.on(turn, spec)

    job, cluster, now, warned = await services.engine.do(scratch)
    warnings = warning_views((*warned, *found.warnings))
    if job not in cluster.gangs:
        told = "it would fail: a job that it is to run after has"
        return PlanView(starts=False, message=told, warnings=warnings)
    seen = await outlook(services, cluster, job, now)
    return PlanView(
        starts=seen.forecast.starts_now,
        message=message(seen, principal),
        warnings=warnings,
        placements=placement_views(seen.forecast),
        victims=victim_views(seen, seen.forecast.victims, principal),
        starts_at=start_view(seen.forecast),
        reason=reason_view(seen.forecast.reason),
        alternatives=alternative_views(seen, principal),
    )


@get("/jobs/{job_id:str}/why", opt={"allowed": USERS}, summary="Say why a job waits")
async def why(request: Request[Any, Any, Any], job_id: FromPath[str]) -> Why:
    """With what would have to change, and what the planner has tried for it."""
    services, principal = services_of(request), principal_of(request)
    found = await find(request, job_id)
    job = found.job
    told = Why(job.id, job.phase, _why(job, found.reason), reason_view(found.reason))
    if job.phase is not Phase.PENDING:
        return told

    def scratch(turn: Turn) -> tuple[Cluster, Micros]:
        return turn.cluster.twin(), turn.now

    cluster, now = await services.engine.do(scratch)
    if job.id not in cluster.gangs:
        return told
    seen = await outlook(services, cluster, job.id, now)
    # The last plan may be older than what has changed since; this one is not. A PodGroup without
    # pods has nothing to plan.
    reason = seen.forecast.reason or members_reason(job)
    return Why(
        job.id,
        job.phase,
        _why(job, reason),
        reason_view(reason),
        remedy=None if reason is None else _remedy(reason, job, seen),
        starts_at=start_view(seen.forecast),
        victims=victim_views(seen, seen.forecast.victims, principal),
        alternatives=alternative_views(seen, principal),
    )


def _remedy(reason: Reason, job: Job, seen: JobForecast) -> str | None:
    told, cluster = remedy(reason), seen.cluster
    if isinstance(reason, NotEnough | Fragmented) and seen.beyond_share is not None:
        return f"{seen.beyond_share}: raise its quota or weight, or wait until others leave it idle"
    if isinstance(reason, QueueLimit) and (above := above_limit(job.spec, cluster.queues)):
        return f"{above}: raise that limit, or ask for less"
    if not isinstance(reason, NoNodeMatches | NeverFits | NotEnough | Fragmented):
        return told
    wanted = reason.selector.items() if isinstance(reason, NoNodeMatches) else {}.items()
    workers = [node.worker for node in cluster.nodes.values()]
    closed = sorted(w.id for w in workers if w.cordoned and wanted <= w.labels.items())
    if not closed:
        return told
    return f"{told}; or uncordon {listed(closed)}"


def _why(job: Job, reason: Reason | None) -> str:
    if reason is not None:
        return f"it waits: {reason}"
    if job.phase is Phase.PENDING:
        return "it waits for the next plan"
    return f"it is {job.phase}" + (f": {job.cause}" if job.cause is not None else "")


ROUTES = [plan_only, why]
