"""Queues: list, show, set, stop, start and remove."""

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.openapi.spec import Schema
from litestar.params import FromPath, QueryParameter
from msgspec.structs import replace

from phalanx.api import manifests, request_body
from phalanx.api.admission import check_managed
from phalanx.api.audit import note
from phalanx.api.auth import ADMINS, USERS, principal_of
from phalanx.api.errors import wrong
from phalanx.api.idempotency import IdempotencyKey, claim
from phalanx.api.manifests import IgnoreUnsupported
from phalanx.api.services import services_of
from phalanx.api.views import warning_views
from phalanx.core.errors import Unknown
from phalanx.core.events import QueueRemoved, QueueSet, QueuesSet
from phalanx.core.model import PreemptWithin, Queue, ReclaimFrom
from phalanx.core.queues import changed
from phalanx.core.spec import quantities
from phalanx.core.spec.fields import FieldPath
from phalanx.core.spec.names import dns_subdomain
from phalanx.core.spec.schema import QUEUE_FIELDS
from phalanx.engine.turn import Turn
from phalanx.manifest.read_options import ReadOptions
from phalanx.wire.workers import QueueChange, QueuesReply, QueueView

WithUsage = Annotated[bool, QueryParameter(description="Add what each queue uses now.")]
DryRun = Annotated[bool, QueryParameter(description="Show the changes without making them.")]

_OBJECT, _INTEGER = Schema(type="object"), Schema(type="integer")  # type: ignore[arg-type]
_STRING, _BOOLEAN = Schema(type="string"), Schema(type="boolean")  # type: ignore[arg-type]
_BODY = request_body.documented(
    {
        "parent": _STRING,
        "weight": _INTEGER,
        "quota": _OBJECT,
        "limit": _OBJECT,
        "stopped": _BOOLEAN,
        "priority": _INTEGER,
        "preempt_within_queue": Schema(type="string", enum=list(PreemptWithin)),  # type: ignore[arg-type]
        "reclaim_from_siblings": Schema(type="string", enum=list(ReclaimFrom)),  # type: ignore[arg-type]
        "reclaimable": _BOOLEAN,
        "non_preemptible_within_quota": _BOOLEAN,
        "consolidation": _BOOLEAN,
        "max_priority": _INTEGER,
        "namespaces": Schema(type="array", items=_STRING),  # type: ignore[arg-type]
    },
    {"weight": 3, "quota": {"gpu": 16}, "limit": {"gpu": 32}},
)

_FILE = request_body.documented(
    {},
    [{"kind": "Queue", "name": "research", "weight": 3, "quota": {"gpu": 16}}],
    media=("application/json", "application/yaml"),
    schema=Schema(type="array", items=_OBJECT),  # type: ignore[arg-type]
)


@get("/queues", opt={"allowed": USERS}, summary="List the queues")
async def list_queues(request: Request[Any, Any, Any], usage: WithUsage = False) -> list[QueueView]:
    """With `usage`, each queue has what it uses, its fair share, and the number of its jobs."""
    services = services_of(request)

    def work(turn: Turn) -> list[QueueView]:
        return [queue_view(queue) for _, queue in sorted(turn.cluster.queues.items())]

    views = await services.engine.do(work)
    if not usage:
        return views
    usages = await services.queue_usages.by_queue()
    return [replace(view, usage=usages.get(view.name)) for view in views]


@get("/queues/{name:str}", opt={"allowed": USERS}, summary="Show a queue")
async def show_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueueView:
    return await services_of(request).engine.do(lambda turn: queue_view(_queue(turn, name)))


def queue_view(queue: Queue) -> QueueView:
    return QueueView(
        name=queue.name,
        parent=queue.parent,
        weight=queue.weight,
        quota=quantities.native(queue.quota),
        limit=quantities.native(queue.limit),
        stopped=queue.stopped,
        priority=queue.priority,
        preempt_within_queue=queue.preempt_within_queue,
        reclaim_from_siblings=queue.reclaim_from_siblings,
        reclaimable=queue.reclaimable,
        non_preemptible_within_quota=queue.non_preemptible_within_quota,
        consolidation=queue.consolidation,
        max_priority=queue.max_priority,
        namespaces=queue.namespaces,
    )


def _queue(turn: Turn, name: str) -> Queue:
    queue = turn.cluster.queues.get(name)
    if queue is None:
        raise Unknown(f"there is no queue {name[:80]}")
    return queue


@put(
    "/queues/{name:str}",
    operation_class=_BODY,
    opt={"allowed": ADMINS, "action": "set queue", "decided_by": "ManageQueue"},
    summary="Set a queue",
)
async def set_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueueView:
    """Create or replace the queue. Fields that are left out get their default."""
    path = FieldPath()
    with path.at("name"):
        dns_subdomain(name)
    path.raise_problems()
    fields = await request_body.read_one(request, "a mapping, like {weight: 3}", QUEUE_FIELDS)
    queue = Queue(name=name, **fields)

    def work(turn: Turn) -> QueueView:
        turn.apply(QueueSet(queue))
        note(request, turn, target=name)
        return queue_view(queue)

    return await services_of(request).engine.do(work)


@put(
    "/queues",
    operation_class=_FILE,
    opt={"allowed": ADMINS, "action": "set queue", "decided_by": "ManageQueue"},
    summary="Set several queues",
)
async def set_queues(
    request: Request[Any, Any, Any],
    dry_run: DryRun = False,
    ignore_unsupported: IgnoreUnsupported = False,
) -> QueuesReply:
    """All of them or none. Queues that are not in the file stay as they are."""
    by = principal_of(request).name
    options = ReadOptions(ignore_unsupported=ignore_unsupported)
    read = await manifests.read(request, options, "a list of queues")
    await check_managed(request, "queue", *(queue.name for queue in read.queues))
    if read.jobs:
        raise wrong("", "the file has a job among the queues; submit the job on its own")

    def work(turn: Turn) -> QueuesReply:
        before = dict(turn.cluster.queues)
        changes = changed(before, read.queues)
        names = {queue.name for queue in changes}
        if not dry_run:
            turn.apply(QueuesSet(tuple(read.queues), by))
            for queue in changes:
                note(request, turn, target=queue.name)
        return QueuesReply(
            changes=tuple(_change(before.get(queue.name), queue) for queue in changes),
            unchanged=tuple(queue.name for queue in read.queues if queue.name not in names),
            warnings=warning_views(read.warnings),
        )

    return await services_of(request).engine.do(work)


def _change(before: Queue | None, after: Queue) -> QueueChange:
    return QueueChange(None if before is None else queue_view(before), queue_view(after))


@post(
    "/queues/{name:str}/stop",
    opt={"allowed": ADMINS, "action": "stop queue", "decided_by": "ManageQueue"},
    status_code=200,
    summary="Stop a queue",
)
async def stop_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueueView:
    """No job of the queue or its children starts. Running jobs continue."""
    return await _set_stopped(request, name, stopped=True)


@post(
    "/queues/{name:str}/start",
    opt={"allowed": ADMINS, "action": "start queue", "decided_by": "ManageQueue"},
    status_code=200,
    summary="Start a queue",
)
async def start_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueueView:
    """Jobs of the queue and its children can start again."""
    return await _set_stopped(request, name, stopped=False)


async def _set_stopped(request: Request[Any, Any, Any], name: str, *, stopped: bool) -> QueueView:
    def work(turn: Turn) -> QueueView:
        queue = replace(_queue(turn, name), stopped=stopped)
        turn.apply(QueueSet(queue))
        note(request, turn, target=name)
        return queue_view(queue)

    return await services_of(request).engine.do(work)


@delete(
    "/queues/{name:str}",
    opt={"allowed": ADMINS, "action": "remove queue", "decided_by": "ManageQueue"},
    status_code=204,
    summary="Remove a queue",
)
async def remove_queue(
    request: Request[Any, Any, Any], name: FromPath[str], key: IdempotencyKey = None
) -> None:
    """The queue must have no children and no unfinished jobs."""
    async with claim(request, key) as claimed:
        if claimed.earlier is not None:
            return

        def work(turn: Turn) -> None:
            turn.apply(QueueRemoved(name))
            claimed.use(turn)
            note(request, turn, target=name)

        await services_of(request).engine.do(work)


ROUTES = [list_queues, show_queue, set_queue, set_queues, stop_queue, start_queue, remove_queue]
