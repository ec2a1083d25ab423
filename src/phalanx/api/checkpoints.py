"""Checkpoints: bytes that a stopping task saves for its next attempt."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from litestar import MediaType, Request, Response, get, post
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.params import FromPath, QueryParameter

from phalanx.api import request_body
from phalanx.api.auth import USERS, WORKERS
from phalanx.api.errors import wrong
from phalanx.api.lookup import find_task
from phalanx.api.plain_protocol import MaybeEpoch, reported_attempt, required_epoch
from phalanx.api.services import services_of
from phalanx.core import causes
from phalanx.core.errors import Conflict, CoreError
from phalanx.core.events import CheckpointSaved, Evicted
from phalanx.core.model import Blob, Task
from phalanx.core.states import State
from phalanx.engine.turn import Turn

_BYTES = "application/octet-stream"
#: An upload that takes longer is refused: others wait for it.
_UPLOAD_S = 60.0

HasStopped = Annotated[
    bool,
    QueryParameter(
        required=False,
        description="The worker has stopped the task. If the server has not asked it to, for"
        " example because it did not answer, the job is evicted.",
    ),
]


@dataclass
class Bytes(Operation):
    """A request with a binary body."""

    def __post_init__(self) -> None:
        binary = Schema(type="string", format="binary")  # type: ignore[arg-type]
        self.request_body = RequestBody(
            content={_BYTES: OpenAPIMediaType(schema=binary)}, required=True
        )


@post(
    "/jobs/{task:str}/checkpoint",
    operation_class=Bytes,
    opt={"allowed": WORKERS},
    status_code=200,
    summary="Save the checkpoint of a stopping task",
)
async def save(
    request: Request[Any, Any, Any],
    task: FromPath[str],
    epoch: MaybeEpoch = None,
    stopped: HasStopped = False,
) -> Response[None]:
    """The body is stored unchanged. The attempt is required: in the claim's id, or as `epoch`."""
    services = services_of(request)
    epoch = required_epoch(task, epoch)
    reported = reported_attempt(request, task, epoch)
    row = await services.reports.take(reported, partial(_stopping, has_stopped=stopped))
    async with services.checkpoint_uploads:
        data = await _body(request, services.engine.settings.checkpoint_limit_bytes)
        blob = Blob(f"{row.id}/{epoch}/{uuid4().hex}", len(data))
        # The bytes are durable before any row refers to them.
        await services.store.put_blob(blob.id, row.job, data)
    try:
        await services.reports.apply(reported, lambda now: CheckpointSaved(now.id, now.epoch, blob))
    except CoreError:
        await services.store.remove_blob(blob.id)  # the task has stopped meanwhile
        raise
    return Response(None, status_code=200)


async def _body(request: Request[Any, Any, Any], limit_bytes: int) -> bytes:
    try:
        async with asyncio.timeout(_UPLOAD_S):
            data = await request_body.raw(request, limit_bytes)
    except TimeoutError:
        raise wrong("", f"the body did not arrive within {_UPLOAD_S:g} s; send it again") from None
    if not data:
        raise wrong("", "the body is empty; send the checkpoint")
    return data


def _stopping(turn: Turn, task: Task, *, has_stopped: bool) -> Task:
    """The task, which is stopping. If its worker has stopped it alone, its job is evicted first."""
    if has_stopped and task.state is State.RUNNING:
        why = causes.stopped_alone(task.index, task.worker or "")
        turn.apply(Evicted(task.job, by="", why=why))
    elif task.state is not State.PREEMPTING:
        raise Conflict(
            f"task {task.id} is {task.state}; a checkpoint is accepted only while it is preempting"
        )
    return task


@get(
    "/jobs/{task:str}/checkpoint",
    opt={"allowed": (*USERS, *WORKERS)},
    media_type=_BYTES,
    summary="Get the checkpoint for the next attempt",
)
async def load(request: Request[Any, Any, Any], task: FromPath[str]) -> Response[bytes | None]:
    """204 if there is none."""
    _, row = await find_task(request, task)
    data = None
    if row.checkpoint is not None:
        data = await services_of(request).store.get_blob(row.checkpoint.id)
    if data is None:
        return Response(None, status_code=204, media_type=MediaType.TEXT)
    return Response(data, status_code=200, media_type=_BYTES)


ROUTES = [save, load]
