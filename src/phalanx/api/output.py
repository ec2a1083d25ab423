"""The output of tasks: agents upload it in chunks, users read and follow it."""

from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream

from phalanx.api import request_body
from phalanx.api.auth import AGENTS, USERS, principal_of, while_authorised
from phalanx.api.checkpoints import Bytes
from phalanx.api.errors import wrong
from phalanx.api.log_reader import LogReader
from phalanx.api.lookup import JobWithTasks, find
from phalanx.api.services import services_of
from phalanx.core.array import name_an_element
from phalanx.core.errors import Unknown
from phalanx.core.ids import split_claim, split_task
from phalanx.core.model import Job, Task, index_in_role
from phalanx.core.spec.fields import shown
from phalanx.engine.output.outputs import CHUNK_BYTES, MAX_OFFSET
from phalanx.identity.principal import check_worker
from phalanx.store.protocol import OutputChunk
from phalanx.wire.workers import OutputReply

_MAX_ATTEMPT = 2**63 - 1

TaskId = Annotated[str, QueryParameter(description="The id of the task.")]
Follow = Annotated[bool, QueryParameter(description="Continue until the job has ended.")]
Attempt = Annotated[
    int, QueryParameter(ge=0, le=_MAX_ATTEMPT, description="The attempt that wrote this.")
]
OneAttempt = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=_MAX_ATTEMPT, required=False, description="Only this attempt; default: all."
    ),
]
Offset = Annotated[
    int,
    QueryParameter(
        ge=0, le=MAX_OFFSET, description="The offset of the first byte in the attempt's output."
    ),
]
OneTask = Annotated[
    str | None,
    QueryParameter(
        required=False,
        description="Only this task: its number, or `ROLE/INDEX`; default: all tasks.",
    ),
]
Tail = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=1_000_000, required=False, description="Only this many last lines of each task."
    ),
]


@post(
    "/workers/{worker_id:str}/output",
    operation_class=Bytes,
    opt={"allowed": AGENTS},
    status_code=200,
    summary="Upload output of a task",
)
async def upload(
    request: Request[Any, Any, Any],
    worker_id: FromPath[str],
    task: TaskId,
    attempt: Attempt,
    offset: Offset,
) -> Response[OutputReply]:
    """The answer names the next byte that the server needs.

    Bytes that the server has already are ignored. Bytes that are skipped become a gap. An empty
    body only asks for the next byte.
    """
    check_worker(principal_of(request), worker_id)
    outputs = services_of(request).outputs
    job, number = split_task(split_claim(task)[0])
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() and len(declared) < 9 else CHUNK_BYTES
    with outputs.memory(min(size, CHUNK_BYTES)):
        data = await request_body.raw(request, CHUNK_BYTES)
        chunk = OutputChunk(job, number, attempt, offset, data)
        return Response(OutputReply(await outputs.append(worker_id, chunk)), status_code=200)


@get(
    "/jobs/{job_id:str}/logs",
    opt={"allowed": USERS},
    media_type="text/plain",
    summary="Read and follow the output of a job",
)
async def read(  # noqa: PLR0913, PLR0917
    request: Request[Any, Any, Any],
    job_id: FromPath[str],
    task: OneTask = None,
    follow: Follow = False,
    tail: Tail = None,
    attempt: OneAttempt = None,
) -> Stream:
    """The output of one task as it is; of several tasks, with `ROLE/INDEX | ` before each line.

    With `follow` the stream continues, over all attempts, until the job has ended. The output of a
    job that ended a moment ago is read with what its workers send after its end.
    """
    services = services_of(request)
    target = await find(request, job_id)
    if target.job.is_array:
        raise Unknown(name_an_element(target.job))
    tasks = _selected(target, job_id, task)
    if attempt is not None and not 1 <= attempt <= target.job.epoch:
        raise Unknown(f"job {target.job.id} has no attempt {attempt}; {_attempts(target.job)}")
    output = await services.outputs.of(target.job.id)
    reader = LogReader(services, target.job, tasks, attempt)
    if tail is not None:
        await reader.skip_to_tail(output, tail)
    return Stream(
        while_authorised(request, reader.read(output, follow=follow or not target.job.is_live)),
        media_type="text/plain; charset=utf-8",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _attempts(job: Job) -> str:
    if not job.epoch:
        return "it has not had one yet"
    return "its only attempt is 1" if job.epoch == 1 else f"its attempts are 1 to {job.epoch}"


def _selected(target: JobWithTasks, path_id: str, task: str | None) -> tuple[Task, ...]:
    """The tasks named by the path or by the parameter; all if neither names one."""
    number = None if task is None else _number(target, task)
    if path_id != target.job.id:
        in_path = split_task(split_claim(path_id)[0])[1]
        if number not in (None, in_path):
            raise wrong("task", f"is {task}, but the path names task {in_path}; leave one out")
        number = in_path
    return target.tasks if number is None else target.tasks[number : number + 1]


def _number(target: JobWithTasks, name: str) -> int:
    """The number of a task that is named by its number or by `ROLE/INDEX`. Raises Unknown."""
    role, slash, index = name.rpartition("/")
    if not (index.isascii() and index.isdecimal() and len(index) < 10):
        raise wrong("task", f"is {shown(name)}; write a task's number, like 0, or worker/0")
    for task in target.tasks:
        own = index_in_role(target.job.spec, task.index) if slash else task.index
        if own == int(index) and (task.role == role or not slash):
            return task.index
    raise Unknown(f"job {target.job.id} has no task {name[:80]}; {_tasks(target)}")


def _tasks(target: JobWithTasks) -> str:
    if not target.tasks:
        return "it has no tasks yet"
    roles = (_range(f"{role.name}/", role.replicas) for role in target.job.spec.roles)
    return f"its tasks are {_range('', len(target.tasks))} ({', '.join(roles)})"


def _range(prefix: str, count: int) -> str:
    return f"{prefix}0" if count == 1 else f"{prefix}0 to {count - 1}"


ROUTES = [upload, read]
