"""What tasks write: workers bring it in chunks, users read it and follow it."""

from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from phalanx.api import request_body
from phalanx.api.auth import USERS, WORKERS
from phalanx.api.checkpoints import Bytes
from phalanx.api.errors import wrong
from phalanx.api.log_reader import LogReader
from phalanx.api.lookup import FoundJob, find
from phalanx.api.plain_protocol import Epoch, MaybeEpoch
from phalanx.api.services import services_of
from phalanx.core.errors import Unknown
from phalanx.core.ids import split_task
from phalanx.core.model import Task
from phalanx.engine.output import CHUNK_BYTES, MAX_OFFSET
from phalanx.store.protocol import Chunk
from phalanx.wire.workers import OutputReply

Offset = Annotated[
    int,
    QueryParameter(ge=0, le=MAX_OFFSET, description="Where in the attempt's output this begins."),
]
TaskIndex = Annotated[
    int | None,
    QueryParameter(ge=0, le=2**31 - 1, required=False, description="One task; all without it."),
]
Tail = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=1_000_000, required=False, description="Begin with the last lines of each task."
    ),
]


@post(
    "/workers/{worker_id:str}/output",
    operation_class=Bytes,
    opt={"allowed": WORKERS},
    status_code=200,
    summary="Bring what a task has written",
)
async def bring(
    request: Request[Any, Any, Any],
    worker_id: FromPath[str],
    task: FromQuery[str],
    epoch: Epoch,
    offset: Offset,
) -> Response[OutputReply]:
    """The answer names the next byte that is wanted. What is there already is passed over; what is
    left out stays out. An empty body only asks."""
    outputs = services_of(request).outputs
    job, index = split_task(task)
    told = request.headers.get("content-length", "")
    size = int(told) if told.isdecimal() and len(told) < 9 else CHUNK_BYTES
    with outputs.room(min(size, CHUNK_BYTES)):
        data = await request_body.raw(request, CHUNK_BYTES)
        chunk = Chunk(job, index, epoch, 0, offset, data)
        return Response(OutputReply(await outputs.append(worker_id, chunk)), status_code=200)


@get(
    "/jobs/{job_id:str}/logs",
    opt={"allowed": USERS},
    media_type="text/plain",
    summary="Read what a job has written, and follow it",
)
async def read(  # noqa: PLR0913, PLR0917
    request: Request[Any, Any, Any],
    job_id: FromPath[str],
    task: TaskIndex = None,
    follow: FromQuery[bool] = False,
    tail: Tail = None,
    attempt: MaybeEpoch = None,
) -> Stream:
    """One task as it wrote it; several with `ROLE/INDEX | ` before each line. `attempt` is the
    epoch of one attempt. With `follow` it goes on until the job has ended, over all attempts."""
    services = services_of(request)
    found = await find(request, job_id)
    tasks = _wanted(found, job_id, task)
    if attempt is not None and not 1 <= attempt <= found.job.epoch:
        had = f"1 to {found.job.epoch}" if found.job.epoch else "none yet"
        raise Unknown(f"job {found.job.id} has no epoch {attempt}; it has had {had}")
    output = await services.outputs.of(found.job.id)
    transcript = LogReader(services, found.job, tasks, attempt)
    if tail is not None:
        await transcript.skip(output, tail)
    return Stream(
        transcript.told(output, follow=follow),
        media_type="text/plain; charset=utf-8",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _wanted(found: FoundJob, name: str, task: int | None) -> tuple[Task, ...]:
    if name != found.job.id:
        named = split_task(name)[1]
        if task not in (None, named):
            raise wrong("task", f"is {task}, and the path names task {named}; leave one out")
        task = named
    if task is None:
        return found.tasks
    if task >= len(found.tasks):
        last = len(found.tasks) - 1
        raise Unknown(f"job {found.job.id} has no task {task}; its tasks are 0 to {last}")
    return found.tasks[task : task + 1]


ROUTES = [bring, read]
