"""The plain protocol: any HTTP client can claim tasks, send heartbeats and report their end."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import FromPath, QueryParameter

from phalanx.api.auth import PLAIN_WORKERS, USERS, identify, principal_of, wait_while_authorised
from phalanx.api.errors import wrong
from phalanx.api.lookup import find
from phalanx.api.plain_views import plain_claim_view, plain_task_views
from phalanx.api.query_names import IGNORES_UNKNOWN
from phalanx.api.services import services_of
from phalanx.core.errors import Conflict
from phalanx.core.events import Event, Exited, Progressed
from phalanx.core.ids import split_claim
from phalanx.core.model import Task
from phalanx.core.states import State
from phalanx.engine.plain.claims import PlainClaim
from phalanx.engine.plain.reports import ReportedAttempt
from phalanx.engine.turn import Turn
from phalanx.identity.principal import check_placed, check_worker
from phalanx.wire.plain import PlainClaimView, PlainHeartbeatReply, PlainTaskView
from phalanx.wire.sync import TaskProgress

_MAX_NUMBER = 2**63 - 1
_MAX_WAIT_S = 60

MaybeEpoch = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=_MAX_NUMBER, required=False, description="The attempt that the report is about."
    ),
]
WorkerId = Annotated[
    str | None, QueryParameter(required=False, description="The worker that runs the task.")
]
Wait = Annotated[
    float,
    QueryParameter(ge=0, le=_MAX_WAIT_S, description="Hold the call open for this many seconds."),
]
ExitCode = Annotated[
    int | None,
    QueryParameter(ge=1, le=255, required=False, description="The exit code of the process."),
]
Step = Annotated[
    int | None,
    QueryParameter(ge=0, le=_MAX_NUMBER, required=False, description="The progress so far."),
]


@get("/jobs/next", opt={"allowed": PLAIN_WORKERS}, summary="Claim the next task")
async def claim(
    request: Request[Any, Any, Any], worker_id: WorkerId = None, wait: Wait = 0.0
) -> Response[PlainClaimView | None]:
    """A task reserved for the worker, else a job that requests no resources; 204 if there is none.

    A worker that is not registered gets only such jobs, and must send a heartbeat every 30 s.
    """
    principal = principal_of(request)
    check_worker(principal, worker_id)
    services = services_of(request)
    claiming = services.claims.next(
        worker_id,
        wait,
        partial(identify, services.auth, request.scope),
        # Only a token for all workers allows reports on tasks that are on no worker.
        must_be_registered=not principal.may_act_as(None),
    )
    claimed = await _while_connected(request, claiming) if wait else await claiming
    if claimed is None:
        return Response(None, status_code=204)
    return Response(plain_claim_view(claimed), status_code=200)


async def _while_connected(
    request: Request[Any, Any, Any], claiming: Coroutine[Any, Any, PlainClaim | None]
) -> PlainClaim | None:
    """Claim a task, unless the client disconnects first: the task would not be run.

    Raises Unauthorised if the client's token is revoked or expires first.
    """
    claim = asyncio.ensure_future(claiming)
    disconnect = asyncio.ensure_future(_disconnected(request))
    try:
        await wait_while_authorised(request, claim, disconnect)
        return claim.result() if claim.done() else None
    finally:
        claim.cancel()
        disconnect.cancel()
        await asyncio.gather(claim, disconnect, return_exceptions=True)


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@get(
    "/gangs/{job_id:str}",
    opt={"allowed": USERS, IGNORES_UNKNOWN: True},
    summary="List the tasks of a job, with the plain protocol's names",
)
async def show_gang(request: Request[Any, Any, Any], job_id: FromPath[str]) -> list[PlainTaskView]:
    """By `gang_index`."""
    target = await find(request, job_id)
    return plain_task_views(target.job, target.tasks)


@post(
    "/jobs/{task:str}/heartbeat",
    opt={"allowed": PLAIN_WORKERS},
    status_code=200,
    summary="Report that a task is alive",
)
async def heartbeat(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    worker_id: WorkerId = None,
) -> PlainHeartbeatReply:
    """Also a heartbeat of its worker. The answer is `{}`, or a request to stop the task."""
    reported = reported_attempt(request, task, epoch, worker_id)
    to_stop = await services_of(request).reports.stop_request(reported)
    return PlainHeartbeatReply() if to_stop is None else PlainHeartbeatReply("preempt", to_stop)


@post(
    "/jobs/{task:str}/done",
    opt={"allowed": PLAIN_WORKERS},
    status_code=200,
    summary="Report that a task succeeded",
)
async def done(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    worker_id: WorkerId = None,
) -> Response[None]:
    """`epoch` can be left out if the report cannot be about an earlier attempt."""
    reported = reported_attempt(request, task, epoch, worker_id, has_ended=True)
    return await _report(request, reported, lambda row: Exited(row.id, row.epoch, code=0))


@post(
    "/jobs/{task:str}/fail",
    opt={"allowed": PLAIN_WORKERS},
    status_code=200,
    summary="Report that a task failed",
)
async def fail(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    worker_id: WorkerId = None,
    exit_code: ExitCode = None,
) -> Response[None]:
    """`epoch` can be left out if the report cannot be about an earlier attempt."""
    reported = reported_attempt(request, task, epoch, worker_id, has_ended=True)
    return await _report(request, reported, lambda row: Exited(row.id, row.epoch, code=exit_code))


@post(
    "/jobs/{task:str}/preempted",
    opt={"allowed": PLAIN_WORKERS},
    status_code=200,
    summary="Report that a task has stopped as requested",
)
async def preempted(
    request: Request[Any, Any, Any], task: FromPath[str], epoch: MaybeEpoch = None
) -> Response[None]:
    """The attempt is required: in the claim's id, or as `epoch`."""
    reported = reported_attempt(request, task, required_epoch(task, epoch), has_ended=True)
    await services_of(request).reports.acknowledge_stop(reported)
    return Response(None, status_code=200)


@post(
    "/jobs/{task:str}/checkpointed",
    opt={"allowed": PLAIN_WORKERS},
    status_code=200,
    summary="Report that the work so far would survive a stop",
)
async def checkpointed(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    step: Step = None,
) -> Response[None]:
    """The attempt is required: in the claim's id, or as `epoch`."""
    board = services_of(request).agent_sync.progress

    def work(turn: Turn, row: Task) -> None:
        if row.state is not State.RUNNING:
            raise Conflict(f"task {row.id} is {row.state}; only a running task can report progress")
        turn.apply(Progressed(row.id, row.epoch, step, safe=True))
        board.note(row.id, row.epoch, turn.now, TaskProgress(step))

    reported = reported_attempt(request, task, required_epoch(task, epoch))
    await services_of(request).reports.take(reported, work)
    return Response(None, status_code=200)


def required_epoch(task: str, epoch: int | None) -> int:
    """The attempt that a report names, in the id of its task or as `epoch`. Raises Invalid."""
    claimed = split_claim(task)[1]
    attempt = claimed if epoch is None else epoch
    if attempt is None:
        raise wrong("epoch", "is missing; add epoch=1 to the query")
    if claimed not in (None, attempt):
        raise wrong("epoch", f"is {epoch}, but the id names attempt {claimed}; leave epoch out")
    return attempt


def reported_attempt(
    request: Request[Any, Any, Any],
    task: str,
    epoch: int | None,
    worker: str | None = None,
    *,
    has_ended: bool = False,
) -> ReportedAttempt:
    """The attempt of a report, which is refused unless the caller may act as the task's worker.

    `task` may be the id of a claim, which names the attempt too.
    """
    name, claimed = split_claim(task)
    if claimed is not None:
        epoch = required_epoch(task, epoch)
    check = partial(check_placed, principal_of(request))
    return ReportedAttempt(name, epoch, worker, has_ended, check)


async def _report(
    request: Request[Any, Any, Any], reported: ReportedAttempt, event: Callable[[Task], Event]
) -> Response[None]:
    await services_of(request).reports.apply(reported, event)
    return Response(None, status_code=200)


ROUTES = [claim, show_gang, heartbeat, done, fail, preempted, checkpointed]
