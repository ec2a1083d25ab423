"""Jobs: list, show, cancel, and their events."""

from typing import Annotated, Any, Literal

from litestar import Request, Response, delete, get
from litestar.params import FromPath, QueryParameter
from msgspec.structs import replace

from phalanx.api.arrays import Elements, cancel_elements, first_failed
from phalanx.api.auth import USERS, principal_of
from phalanx.api.dependencies import related_jobs
from phalanx.api.listing import JobFilter, page_of_jobs, page_of_tasks
from phalanx.api.lookup import change, find, named_task
from phalanx.api.plain_views import plain_task_views
from phalanx.api.progress_views import job_progress, progress_view
from phalanx.api.services import services_of
from phalanx.api.views import job_detail, job_view, task_view
from phalanx.api.visibility import visible_record
from phalanx.core.events import CancelRequested
from phalanx.core.gang import Gang
from phalanx.core.ids import split_claim, split_element
from phalanx.core.model import Job, Phase
from phalanx.core.time_units import Micros
from phalanx.engine.progress_board import JobBoard
from phalanx.engine.turn import Turn
from phalanx.identity.principal import check_namespace
from phalanx.store.protocol import JobQuery
from phalanx.wire.event_text import sentence
from phalanx.wire.events import EventPage, with_iso_times
from phalanx.wire.jobs import JobDetail, JobList, JobView, TaskView
from phalanx.wire.plain import PlainTaskView
from phalanx.wire.progress import JobProgress

_MAX_SEQ = 2**63 - 1

Namespace = Annotated[str | None, QueryParameter(description="Only jobs of this namespace.")]
QueueName = Annotated[str | None, QueryParameter(description="Only jobs of this queue.")]
InPhase = Annotated[Phase | None, QueryParameter(description="Only jobs in this phase.")]
Name = Annotated[str | None, QueryParameter(description="Only jobs with this name.")]
NameContains = Annotated[
    str | None, QueryParameter(description="Only jobs whose name contains this.")
]
IdPrefix = Annotated[
    str | None, QueryParameter(description="Only jobs whose id begins like this, such as j-7k.")
]
Finished = Annotated[
    bool | None, QueryParameter(description="Only finished jobs, or only unfinished ones.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="The most entries on a page.")]
PageCursor = Annotated[
    str | None, QueryParameter(description="The `cursor` of the page before this one.")
]
View = Annotated[
    Literal["tasks"] | None, QueryParameter(description="List the tasks of the jobs instead.")
]
After = Annotated[
    int, QueryParameter(ge=0, le=_MAX_SEQ, description="Only events after the one numbered so.")
]


@get("/jobs", opt={"allowed": USERS}, summary="List jobs, newest first")
async def list_jobs(  # noqa: PLR0913, PLR0917
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    queue: QueueName = None,
    phase: InPhase = None,
    name: Name = None,
    name_contains: NameContains = None,
    id_prefix: IdPrefix = None,
    finished: Finished = None,
    limit: Limit = 100,
    cursor: PageCursor = None,
    view: View = None,
) -> Response[JobList | list[PlainTaskView]]:
    """Jobs by creation time, newest first. No job is on two pages, and none is left out.

    With `view=tasks`: a list of their tasks, with the plain protocol's names. The header
    `X-Next-Cursor` leads to the next page.
    """
    principal = principal_of(request)
    if namespace is not None:
        check_namespace(principal, namespace)
    namespaces = principal.confined_to if namespace is None else (namespace,)
    query = JobQuery(namespace, queue, phase, name, id_prefix, name_contains or None)
    wanted = JobFilter(principal, query, namespaces, finished)
    services = services_of(request)
    if view != "tasks":
        return Response(await page_of_jobs(services, wanted, limit, cursor))
    tasks, more = await page_of_tasks(services, wanted, limit, cursor)
    return Response(tasks, headers={} if more is None else {"X-Next-Cursor": more})


@get("/jobs/{job_id:str}", opt={"allowed": USERS}, summary="Show a job with its tasks, or a task")
async def show_job(
    request: Request[Any, Any, Any], job_id: FromPath[str]
) -> JobDetail | PlainTaskView:
    """The job with its tasks, specification and dependencies.

    For the id of a task: that task, with the plain protocol's names.
    """
    target = await find(request, job_id)
    if split_claim(job_id)[0] != target.job.id:
        [view] = plain_task_views(target.job, [named_task(target, job_id)])
        return view
    detail = job_detail(target.job, target.tasks, principal_of(request), target.reason)
    if target.job.is_array:
        detail = replace(detail, first_failed=await first_failed(request, target.job.id))
    dependencies, dependants = await related_jobs(request, target.job)
    board, now = _board_and_time(request, target.job)
    running = target.tasks if target.job.is_live else ()
    progress = progress_view(board, running, now)
    return replace(detail, after=dependencies, dependants=dependants, progress=progress)


@get("/jobs/{job_id:str}/progress", opt={"allowed": USERS}, summary="Show the progress of a job")
async def show_progress(request: Request[Any, Any, Any], job_id: FromPath[str]) -> JobProgress:
    """The steps and values that the tasks reported last, and the history of each value.

    The server keeps them in memory: after a restart they begin with the next reports.
    """
    target = await find(request, job_id)
    board, now = _board_and_time(request, target.job)
    return job_progress(board, target.tasks, now, is_live=target.job.is_live)


def _board_and_time(request: Request[Any, Any, Any], job: Job) -> tuple[JobBoard | None, Micros]:
    services = services_of(request)
    return services.agent_sync.progress.job(job.id), services.clock()


@delete(
    "/jobs/{job_id:str}",
    opt={"allowed": USERS, "action": "cancel", "decided_by": "CancelJob"},
    status_code=200,
    summary="Cancel a job",
)
async def cancel_job(
    request: Request[Any, Any, Any], job_id: FromPath[str], elements: Elements = None
) -> JobView:
    """Running tasks are stopped with the job's grace period."""

    element = split_element(job_id)
    if elements is None and element is not None:
        return await cancel_elements(request, *element)
    if elements is not None:
        return await cancel_elements(request, job_id, elements)

    def cancel(turn: Turn, gang: Gang, by: Any) -> Job:
        return turn.apply(CancelRequested(gang.job.id, by.name)).gangs[gang.job.id].job

    return job_view(await change(request, job_id, cancel), principal_of(request))


@get("/jobs/{job_id:str}/tasks", opt={"allowed": USERS}, summary="List the tasks of a job")
async def list_tasks(request: Request[Any, Any, Any], job_id: FromPath[str]) -> list[TaskView]:
    """By their number in the job."""
    target = await find(request, job_id)
    return [task_view(target.job, task) for task in target.tasks]


@get("/jobs/{job_id:str}/events", opt={"allowed": USERS}, summary="List the events of a job")
async def job_events(
    request: Request[Any, Any, Any],
    job_id: FromPath[str],
    after: After = 0,
    limit: Limit = 100,
) -> EventPage:
    """Oldest first, from the event after number `after` on."""
    target = await find(request, job_id)
    services, principal = services_of(request), principal_of(request)
    records = await services.store.records(job=target.job.id, after=after, limit=limit)
    gangs = await services.engine.do(lambda turn: turn.cluster.gangs)
    more = records[-1].seq if len(records) == limit else None
    visible = [visible_record(principal, record, gangs) for record in records]
    return EventPage(tuple(map(with_iso_times, visible)), tuple(map(sentence, visible)), more)


ROUTES = [list_jobs, show_job, show_progress, list_tasks, cancel_job, job_events]
