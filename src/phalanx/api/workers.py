"""Workers: registering, being heard, being listed, and what operators do to them."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from litestar import Request, Response, delete, get, post
from litestar.openapi.spec import Schema
from litestar.params import FromPath, FromQuery

from phalanx.api import request_body
from phalanx.api.auth import ADMINS, ANYBODY, WORKERS, principal_of
from phalanx.api.services import services_of
from phalanx.api.worker_views import worker_view
from phalanx.core.errors import Unknown
from phalanx.core.events import (
    CordonChanged,
    DrainRequested,
    Vanished,
    WorkerRegistered,
    WorkerRemoved,
    WorkerReturned,
)
from phalanx.core.ids import split_task
from phalanx.core.model import Protocol
from phalanx.core.node import Node
from phalanx.core.records import JobEvicted
from phalanx.core.spec import quantities
from phalanx.core.spec.durations import duration
from phalanx.core.spec.fields import (
    REQUIRED,
    Field,
    FieldPath,
    integer,
    items,
    one_of,
    refusal,
    shown,
    text,
    texts,
)
from phalanx.core.spec.names import label_key, worker_id
from phalanx.core.states import State
from phalanx.engine.turn import Turn
from phalanx.wire.workers import DrainReply, WorkerView

_MOST_SLOTS = 100_000


def _address(value: object) -> str:
    address = text(value)
    if len(address) > 300 or any(c.isspace() or c == "," for c in address):
        raise refusal(f"is {shown(address)}; write host or host:port")
    return address


_labels = texts("a mapping of names to strings", label_key, text)


def _tags(value: object) -> dict[str, str]:
    """`{gpu_model: h100}`, or `["gpu_model=h100", "spot"]`."""
    if isinstance(value, Mapping):
        return _labels(value)
    given = items(value, "a mapping of names to strings, or a list of name=value")
    pairs = (text(item).partition("=") for item in given)
    return _labels({name: value for name, _, value in pairs})


_FIELDS = {
    "id": Field(worker_id, REQUIRED),
    "exec_addr": Field(_address),
    "resources": Field(quantities.capacity, {}),
    "tags": Field(_tags, {}),
    "slots": Field(integer(1, _MOST_SLOTS)),
    "protocol": Field(one_of(Protocol), "plain"),
    "incarnation": Field(worker_id),
}
_STRING = Schema(type="string")  # type: ignore[arg-type]
_OBJECT = Schema(type="object")  # type: ignore[arg-type]
_BODY = request_body.documented(
    {
        "id": _STRING,
        "exec_addr": _STRING,
        "resources": _OBJECT,
        "tags": _OBJECT,
        "slots": Schema(type="integer"),  # type: ignore[arg-type]
        "protocol": _STRING,
        "incarnation": _STRING,
    },
    {"id": "w-1", "exec_addr": "10.0.0.1:9000", "resources": {"gpu": 8, "memory": "512Gi"}},
    required=("id",),
)


@post("/workers/register", operation_class=_BODY, opt={"allowed": WORKERS}, summary="Register")
async def register(request: Request[Any, Any, Any]) -> WorkerView:
    """Registering again supersedes. A plain worker registers when it begins, and then it runs
    nothing, unless it says with its `incarnation` that it is the same one."""
    fields = await request_body.read_one(request, "a mapping, like {id: w-1}", _FIELDS)
    worker = fields["id"]
    given = fields["incarnation"]
    event = WorkerRegistered(
        worker=worker,
        incarnation=given or uuid4().hex,
        protocol=fields["protocol"],
        address=fields["exec_addr"] or worker,
        resources=fields["resources"],
        labels=fields["tags"],
        slots=fields["slots"],
    )
    services = services_of(request)
    view = await services.engine.do(lambda turn: _register(turn, event))
    services.engine.hear_worker(worker)
    return view


def _register(turn: Turn, event: WorkerRegistered) -> WorkerView:
    known = turn.cluster.nodes.get(event.worker)
    if (
        known is not None
        and event.protocol is Protocol.PLAIN
        and known.worker.incarnation != event.incarnation
    ):
        _lose_processes(turn, known)
    turn.apply(event)
    return worker_view(turn.cluster.nodes[event.worker])


def _lose_processes(turn: Turn, node: Node) -> None:
    """A plain worker that begins anew has none of the processes that it had."""
    for task_id, epoch in list(node.charges):
        if (task_id, epoch) in turn.cluster.residues:
            continue
        job, index = split_task(task_id)
        gang = turn.cluster.gangs.get(job)
        # A sibling that vanished first may have taken this one along.
        if gang is None or gang.tasks[index].epoch != epoch:
            continue
        if gang.tasks[index].state in (State.RUNNING, State.PREEMPTING):
            turn.apply(Vanished(task_id, epoch))


@post(
    "/workers/{worker_id:str}/heartbeat",
    opt={"allowed": WORKERS},
    status_code=200,
    summary="A worker lives",
)
async def heartbeat(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> WorkerView:
    """A plain worker that was lost is taken back by it."""

    def work(turn: Turn) -> WorkerView:
        if _node(turn, worker_id).worker.lost_at is not None:
            turn.apply(WorkerReturned(worker_id))
        return worker_view(turn.cluster.nodes[worker_id])

    services = services_of(request)
    view = await services.engine.do(work)
    services.engine.hear_worker(worker_id)
    return view


def _node(turn: Turn, worker: str) -> Node:
    node = turn.cluster.nodes.get(worker)
    if node is None:
        raise Unknown(f"worker {worker[:80]} is not registered")
    return node


@get("/workers", opt={"allowed": ANYBODY}, summary="List the workers")
async def list_workers(request: Request[Any, Any, Any]) -> list[WorkerView]:
    def work(turn: Turn) -> list[WorkerView]:
        return [worker_view(node) for _, node in sorted(turn.cluster.nodes.items())]

    return await services_of(request).engine.do(work)


@delete(
    "/workers/{worker_id:str}",
    opt={"allowed": ADMINS},
    status_code=204,
    summary="Remove a worker for good",
)
async def remove(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> None:
    """Whoever asks for it vouches that nothing of ours runs there any more."""
    event = WorkerRemoved(worker_id, principal_of(request).name)
    await services_of(request).engine.apply(event)


@post(
    "/workers/{worker_id:str}/cordon",
    opt={"allowed": ADMINS},
    status_code=200,
    summary="FieldPath nothing new on a worker",
)
async def cordon(
    request: Request[Any, Any, Any], worker_id: FromPath[str], reason: FromQuery[str | None] = None
) -> WorkerView:
    why = _reason(request, reason, "cordoned")

    def work(turn: Turn) -> WorkerView:
        turn.apply(CordonChanged(worker_id, why))
        return worker_view(turn.cluster.nodes[worker_id])

    return await services_of(request).engine.do(work)


@post(
    "/workers/{worker_id:str}/uncordon",
    opt={"allowed": ADMINS},
    status_code=200,
    summary="Open a worker again",
)
async def uncordon(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> WorkerView:
    def work(turn: Turn) -> WorkerView:
        turn.apply(CordonChanged(worker_id, None))
        return worker_view(turn.cluster.nodes[worker_id])

    return await services_of(request).engine.do(work)


@post(
    "/workers/{worker_id:str}/drain",
    opt={"allowed": ADMINS},
    status_code=200,
    summary="Cordon a worker and evict what is on it",
)
async def drain(
    request: Request[Any, Any, Any],
    worker_id: FromPath[str],
    reason: FromQuery[str | None] = None,
    deadline: FromQuery[str | None] = None,
) -> Response[DrainReply]:
    """What is there may go on for as long as `deadline` says, then it is stopped like an evicted
    job and placed elsewhere; without one, at once."""
    why, by = _reason(request, reason, "drained"), principal_of(request).name
    place = FieldPath()
    with place.at("deadline"):
        delay = 0 if deadline is None else duration(deadline)
    place.raise_problems()

    def work(turn: Turn) -> DrainReply:
        changes = turn.apply(DrainRequested(worker_id, why, by, turn.now + delay))
        told = tuple(r.job for r in changes.records if isinstance(r, JobEvicted))
        return DrainReply(worker_view(turn.cluster.nodes[worker_id]), told)

    return Response(await services_of(request).engine.do(work), status_code=200)


@post(
    "/workers/brake/release",
    opt={"allowed": ADMINS},
    status_code=204,
    summary="Declare workers lost although many are",
)
async def release_brake(request: Request[Any, Any, Any]) -> None:
    """When many workers fall silent at once, nothing is drained for a while, for it is more likely
    the network. Whoever calls this has looked, and says that they are gone."""
    await services_of(request).engine.release_brake()


def _reason(request: Request[Any, Any, Any], given: str | None, what: str) -> str:
    by = principal_of(request).name
    return text(given)[:1000] if given else what + (f" by {by}" if by else "")


ROUTES = [register, heartbeat, list_workers, remove, cordon, uncordon, drain, release_brake]
