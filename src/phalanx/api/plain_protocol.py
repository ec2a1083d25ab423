"""The plain protocol: whoever speaks HTTP claims tasks, says that they live, and how they end."""

import asyncio
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from phalanx.api.auth import ANYBODY, WORKERS
from phalanx.api.lookup import find
from phalanx.api.plain_views import plain_claim_view, plain_task_view
from phalanx.api.services import services_of
from phalanx.core.errors import Conflict
from phalanx.core.events import Event, Exited, Progressed, Stopped
from phalanx.core.model import Task
from phalanx.core.states import State
from phalanx.engine.plain.claims import PlainClaim
from phalanx.engine.plain.reports import Speaker
from phalanx.engine.turn import Turn
from phalanx.wire.plain import PlainClaimView, PlainHeartbeatReply, PlainTaskView

_BIGGEST = 2**63 - 1
_LONGEST_WAIT_S = 60

Epoch = Annotated[int, QueryParameter(ge=0, le=_BIGGEST, description="Which attempt is meant.")]
MaybeEpoch = Annotated[
    int | None,
    QueryParameter(ge=0, le=_BIGGEST, required=False, description="Which attempt is meant."),
]
Wait = Annotated[
    float,
    QueryParameter(ge=0, le=_LONGEST_WAIT_S, description="Wait this many seconds for a task."),
]
ExitCode = Annotated[int | None, QueryParameter(ge=1, le=255, required=False)]
Step = Annotated[int | None, QueryParameter(ge=0, le=_BIGGEST, required=False)]


@get("/jobs/next", opt={"allowed": WORKERS}, summary="PlainClaim the next task")
async def claim(
    request: Request[Any, Any, Any], worker_id: FromQuery[str | None] = None, wait: Wait = 0.0
) -> Response[PlainClaimView | None]:
    """First what is reserved for the worker, else a job that asks for nothing; 204 if there is
    neither. Without `worker_id` only such jobs, which must then be heard of every 30 s."""
    claims = services_of(request).claims
    if wait:
        found = await _unless_gone(request, claims.next(worker_id, wait))
    else:
        found = await claims.next(worker_id, 0.0)
    if found is None:
        return Response(None, status_code=204)
    return Response(plain_claim_view(found), status_code=200)


async def _unless_gone(request: Request[Any, Any, Any], claiming: Any) -> PlainClaim | None:
    """Nothing is claimed for somebody who has hung up."""
    claim = asyncio.ensure_future(claiming)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((claim, gone), return_when=asyncio.FIRST_COMPLETED)
        if claim.done():
            found: PlainClaim | None = claim.result()
            return found
        return None
    finally:
        claim.cancel()
        gone.cancel()
        await asyncio.gather(claim, gone, return_exceptions=True)


async def _hung_up(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@get(
    "/gangs/{job_id:str}",
    opt={"allowed": ANYBODY},
    summary="List the tasks of a job, with the plain protocol's names",
)
async def show_gang(request: Request[Any, Any, Any], job_id: FromPath[str]) -> list[PlainTaskView]:
    """By `gang_index`."""
    found = await find(request, job_id)
    return [plain_task_view(found.job, task) for task in found.tasks]


@post("/jobs/{task:str}/heartbeat", opt={"allowed": WORKERS}, status_code=200, summary="It lives")
async def heartbeat(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    worker_id: FromQuery[str | None] = None,
) -> PlainHeartbeatReply:
    """Answers `{}`, or that it has to stop. The worker that holds it is heard too."""
    return await services_of(request).reports.take(Speaker(task, epoch, worker_id), _told)


def _told(turn: Turn, task: Task) -> PlainHeartbeatReply:
    if task.state is State.PREEMPTING:
        return PlainHeartbeatReply("preempt", task.epoch)
    return PlainHeartbeatReply()


@post("/jobs/{task:str}/done", opt={"allowed": WORKERS}, status_code=200, summary="It ended well")
async def done(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    worker_id: FromQuery[str | None] = None,
) -> Response[None]:
    """Without `epoch` only if no earlier attempt can be meant."""
    speaker = Speaker(task, epoch, worker_id, is_over=True)
    return await _report(request, speaker, lambda row: Exited(row.id, row.epoch, code=0))


@post("/jobs/{task:str}/fail", opt={"allowed": WORKERS}, status_code=200, summary="It failed")
async def fail(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    worker_id: FromQuery[str | None] = None,
    exit_code: ExitCode = None,
) -> Response[None]:
    """Without `epoch` only if no earlier attempt can be meant."""
    speaker = Speaker(task, epoch, worker_id, is_over=True)
    return await _report(request, speaker, lambda row: Exited(row.id, row.epoch, code=exit_code))


@post(
    "/jobs/{task:str}/preempted",
    opt={"allowed": WORKERS},
    status_code=200,
    summary="It was told to stop and is no more",
)
async def preempted(
    request: Request[Any, Any, Any], task: FromPath[str], epoch: Epoch
) -> Response[None]:
    speaker = Speaker(task, epoch, is_over=True)
    return await _report(request, speaker, lambda row: Stopped(row.id, row.epoch))


@post(
    "/jobs/{task:str}/checkpointed",
    opt={"allowed": WORKERS},
    status_code=200,
    summary="Its work up to now would survive a stop",
)
async def checkpointed(
    request: Request[Any, Any, Any], task: FromPath[str], epoch: Epoch, step: Step = None
) -> Response[None]:
    def work(turn: Turn, row: Task) -> None:
        if row.state is not State.RUNNING:
            raise Conflict(f"task {row.id} is {row.state}; only running work can be safe")
        turn.apply(Progressed(row.id, row.epoch, step, safe=True))

    await services_of(request).reports.take(Speaker(task, epoch), work)
    return Response(None, status_code=200)


async def _report(request: Request[Any, Any, Any], speaker: Speaker, event: Any) -> Response[None]:
    def made(row: Task) -> Event:
        result: Event = event(row)
        return result

    await services_of(request).reports.apply(speaker, made)
    return Response(None, status_code=200)


ROUTES = [claim, show_gang, heartbeat, done, fail, preempted, checkpointed]
