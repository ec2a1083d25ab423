"""What would happen to a job if it were submitted now, and why a job is pending."""

from datetime import UTC
from typing import Any

from litestar import Request, get, post
from litestar.params import FromPath
from msgspec.structs import replace

from phalanx.api import manifests
from phalanx.api.admission import admit_plan
from phalanx.api.auth import USERS, principal_of
from phalanx.api.blocking_views import BlockingInWords
from phalanx.api.elements import live_array
from phalanx.api.errors import wrong
from phalanx.api.forecast_views import (
    alternative_views,
    due_views,
    listed_once,
    message,
    placement_views,
    start_view,
    victim_views,
)
from phalanx.api.lookup import find
from phalanx.api.manifests import (
    DefaultNamespace,
    IgnoreImage,
    IgnoreUnsupported,
    Override,
    read_options,
)
from phalanx.api.services import Services, services_of
from phalanx.api.submit import JOB_BODY
from phalanx.api.views import reason_view, warning_views
from phalanx.api.visibility import visible_cause, visible_reason
from phalanx.core.array import Array
from phalanx.core.changes import Changes
from phalanx.core.events import Submitted
from phalanx.core.gang import Gang, tasks_of
from phalanx.core.model import Job, Phase
from phalanx.core.reasons import (
    Fragmented,
    Gathering,
    NeverFits,
    NoNodeMatches,
    NotEnough,
    Reason,
    members_reason,
)
from phalanx.core.spec.cron_expression import parse
from phalanx.core.spec.cron_times import next_due
from phalanx.core.spec.job import Schedule
from phalanx.core.states import State
from phalanx.core.time_units import Micros
from phalanx.core.warnings import AnyWarning
from phalanx.engine.dependency_lookup import look_up
from phalanx.engine.forecast import JobForecast
from phalanx.engine.timezones import zone
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.plan.explain.share_rules import PastMaxWait, ShareRule
from phalanx.plan.explain.whatif import remedy
from phalanx.wire.plan import PlanView, Why
from phalanx.wire.times import iso_time_or_none

#: The id of the job that is tried out. No other job has it: ids that are drawn contain no l.
_PLANNED = "j-planned"


@post(
    "/plan",
    operation_class=JOB_BODY,
    opt={"allowed": USERS, "decided_by": "SubmitJob"},
    status_code=200,
    summary="Show what would happen if this job were submitted now",
)
async def plan_only(
    request: Request[Any, Any, Any],
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    override: Override = None,
    namespace: DefaultNamespace = None,
) -> PlanView:
    """Nothing is stored. Of a cron: when its next run is due, and what the run would do if the
    cluster stayed as it is now."""
    services, principal = services_of(request), principal_of(request)
    settings = read_options(
        services,
        ignore_image=ignore_image,
        ignore_unsupported=ignore_unsupported,
        whole_gangs=True,
        override=override,
        namespace=namespace,
    )
    found = await manifests.read(request, settings)
    if len(found.jobs) != 1 or found.queues:
        raise wrong("", f"the body has {len(found.jobs)} jobs; plan one job at a time")
    schedule, spec = found.jobs[0].schedule, replace(found.jobs[0], schedule=None)
    images = await admit_plan(request, spec, is_cron=schedule is not None)
    dependencies = await look_up(services.engine, services.store, [spec])

    def preview(turn: Turn) -> tuple[Gang, tuple[AnyWarning, ...], Micros]:
        resolved = dependencies.resolved(spec, turn.cluster)
        submitted = Submitted(_PLANNED, resolved, ended=dependencies.ended(resolved))
        changes = turn.cluster.preview(submitted, turn.now)
        return _planned_gang(changes), services.submit_warnings.of(turn, spec), turn.now

    gang, advice, now = await services.engine.do(preview)
    warnings = warning_views((*advice, *found.warnings, *images.unchecked))
    seen = None
    if gang.job.finished_at is None and not images.failure:
        seen = await services.forecasts.of(gang.job.id, principal.name, gang)
    if seen is None:
        how = "be cancelled" if gang.job.phase is Phase.CANCELLED else "fail"
        message_of_end = f"the job would {how}: {images.failure or gang.job.cause}"
        view = PlanView(starts=False, message=message_of_end, warnings=warnings)
    else:
        view = _plan_view(_visible(seen, principal), principal, warnings)
    if spec.array is not None:
        view = replace(view, message=f"each of {spec.elements} elements: {view.message}")
    return view if schedule is None else _at_next_run(view, schedule, now)


def _planned_gang(changes: Changes) -> Gang:
    """The planned job; of an array its first element, because all of them are alike."""
    gang = changes.gangs[_PLANNED]
    if not isinstance(gang, Array) or gang.job.end is not None:
        return gang
    first = gang.first_pending()
    if first is not None:
        return changes.gangs[first]
    # It has dependencies, and so would an element.
    element = replace(gang.new_job(0), pending=gang.job.pending)
    return Gang(element, tasks_of(element.id, element.spec, State.BLOCKED))


def _plan_view(
    seen: JobForecast, principal: Principal, warnings: tuple[dict[str, Any], ...]
) -> PlanView:
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


def _at_next_run(view: PlanView, schedule: Schedule, now: Micros) -> PlanView:
    """The plan of a cron's next run, on the assumption that nothing changes until then."""
    due = next_due(parse(schedule.cron), zone(schedule.timezone) or UTC, now)
    at = iso_time_or_none(due)
    when = "never" if at is None else f"at {at[:16].replace('T', ' ')} UTC"
    then = view.message.replace("would start now", "would start at once")
    return replace(
        view,
        starts=False,
        due_at=at,
        message=f"the next run is due {when}; if the cluster stayed as it is now, {then}",
        alternatives=(),
    )


@get("/jobs/{job_id:str}/why", opt={"allowed": USERS}, summary="Explain why a job is pending")
async def why(request: Request[Any, Any, Any], job_id: FromPath[str]) -> Why:
    """Explain why a job is pending, stopping or ended, and what would let a pending job start."""
    services, principal = services_of(request), principal_of(request)
    found = await find(request, job_id)
    job = found.job
    subject = await _planned_job(services, job)
    seen = None
    if job.phase is Phase.PENDING and subject is not None:
        seen = await services.forecasts.of(subject, principal.name)
    if seen is None:
        message = _why(principal, job, found.reason)
        return Why(job.id, job.phase, message, reason_view(found.reason))
    seen = _visible(seen, principal)
    # The last plan may be older than the latest changes; the forecast is not. A PodGroup without
    # pods has nothing to plan.
    reason = seen.forecast.reason or members_reason(job)
    blocking = None if seen.blocking is None else BlockingInWords(seen, seen.blocking, principal)
    rule = _rule(reason, seen)
    return Why(
        job.id,
        job.phase,
        _why(principal, job, reason),
        reason_view(reason),
        rule=None if rule is None else str(rule),
        blocked=None if blocking is None else blocking.view,
        remedy=None if reason is None else _remedy(reason, rule, blocking, seen),
        starts_at=start_view(seen.forecast),
        victims=victim_views(seen, seen.forecast.victims, principal),
        alternatives=alternative_views(seen, principal),
        due=due_views(seen.due),
        overdue_at=None if seen.due is None else iso_time_or_none(seen.due.overdue_at),
    )


async def _planned_job(services: Services, job: Job) -> str | None:
    """The job that the planner knows: for an array, its first pending element."""
    if not job.is_array:
        return job.id
    array = await services.engine.do(lambda turn: live_array(turn.cluster, job.id))
    return None if array is None else array.first_pending()


def _visible(seen: JobForecast, principal: Principal) -> JobForecast:
    """The forecast with a reason that names no job that the caller may not see."""
    reason = visible_reason(principal, seen.forecast.reason, seen.state.gangs)
    return seen._replace(forecast=replace(seen.forecast, reason=reason))


def _rule(reason: Reason | None, seen: JobForecast) -> ShareRule | None:
    """The rule of fair share that makes a job wait which is short of capacity only."""
    is_short = isinstance(reason, NotEnough | Fragmented | Gathering)
    return seen.rule if is_short else None


def _remedy(
    reason: Reason, rule: ShareRule | None, blocking: BlockingInWords | None, seen: JobForecast
) -> str | None:
    # By the other rules, the queue may reclaim from the jobs that block this one.
    if blocking is not None and (rule is None or isinstance(rule, PastMaxWait)):
        return blocking.remedy
    if rule is not None:
        return rule.remedy
    cure = remedy(reason)
    if not isinstance(reason, NoNodeMatches | NeverFits | NotEnough | Fragmented):
        return cure
    selector = reason.selector.items() if isinstance(reason, NoNodeMatches) else {}.items()
    workers = [node.worker for node in seen.state.nodes.values()]
    cordoned = sorted(w.id for w in workers if w.cordoned and selector <= w.labels.items())
    return f"{cure}, or uncordon {listed_once(cordoned)}" if cordoned else cure


def _why(principal: Principal, job: Job, reason: Reason | None) -> str:
    if reason is not None:
        return f"{job.phase}: {reason}"
    if job.phase is Phase.PENDING:
        return "pending: queued for the next plan"
    cause = job.cause
    return job.phase + (f": {visible_cause(principal, cause)}" if cause is not None else "")


ROUTES = [plan_only, why]
