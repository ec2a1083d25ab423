"""Workers: register, send heartbeats, list."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from litestar import Request, Response, get, post
from litestar.openapi.spec import Schema
from litestar.params import FromPath

from phalanx.api import request_body
from phalanx.api.audit import name_target, note
from phalanx.api.auth import PLAIN_WORKERS, USERS, WORKERS, principal_of
from phalanx.api.services import services_of
from phalanx.api.visibility import may_see_task
from phalanx.api.worker_views import worker_view
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import (
    Vanished,
    WorkerRegistered,
    WorkerReturned,
)
from phalanx.core.ids import split_task
from phalanx.core.model import Limit, Protocol
from phalanx.core.node import Node
from phalanx.core.spec import quantities
from phalanx.core.spec.fields import (
    REQUIRED,
    Field,
    integer,
    items,
    one_of,
    refusal,
    shown,
    text,
    texts,
    unknown_keys,
)
from phalanx.core.spec.names import label_key, label_value, worker_id
from phalanx.core.states import State
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Forbidden, Principal, check_worker
from phalanx.wire.workers import WorkerView

_MAX_SLOTS = 100_000
#: Of the ignored fields, those that a header can name.
_MOST_IGNORED = 20
_HEADER_WORD = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def _address(value: object) -> str:
    address = "" if value == "" else text(value)  # Go sends fields without a value, too
    if len(address) > 300 or any(c.isspace() or c == "," for c in address):
        raise refusal(f"is {shown(address)}; write host or host:port")
    return address


_limit = one_of(Limit)
_labels = texts("a mapping of names to strings", label_key, label_value)


def _tags(value: object) -> dict[str, str]:
    """`{gpu_model: h100}`, or `["gpu_model=h100", "spot"]`."""
    if isinstance(value, Mapping):
        return _labels(value)
    given = items(value, "a mapping of names to strings, or a list of name=value")
    pairs = (text(item).partition("=") for item in given)
    return _labels({name: value for name, _, value in pairs})


def _limits(value: object) -> tuple[Limit, ...]:
    return tuple(map(_limit, items(value, "a list of limits, like [memory, cpu, processes]")))


_FIELDS = {
    "id": Field(worker_id, REQUIRED),
    "exec_addr": Field(_address),
    "resources": Field(quantities.capacity, {}),
    "tags": Field(_tags, {}),
    "slots": Field(integer(1, _MAX_SLOTS)),
    "protocol": Field(one_of(Protocol), "plain"),
    "incarnation": Field(worker_id),
    "limits": Field(_limits, ()),
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
        "limits": Schema(type="array", items=_STRING),  # type: ignore[arg-type]
    },
    {"id": "w-1", "exec_addr": "10.0.0.1:9000", "resources": {"gpu": 8, "memory": "512Gi"}},
    required=("id",),
)


@post(
    "/workers/register",
    operation_class=_BODY,
    opt={"allowed": WORKERS, "action": "register worker"},
    summary="Register a worker",
)
async def register(request: Request[Any, Any, Any]) -> Response[WorkerView]:
    """Registering again replaces the earlier registration.

    A plain worker that registers runs nothing, unless it gives the same `incarnation` as before.
    Other fields of a plain worker are ignored, and named in the header `X-Ignored-Fields`.
    """
    fields, ignored = await _registration(request)
    worker = fields["id"]
    name_target(request.scope, worker)
    event = WorkerRegistered(
        worker=worker,
        incarnation=fields["incarnation"] or uuid4().hex,
        protocol=fields["protocol"],
        address=fields["exec_addr"] or worker,
        resources=fields["resources"],
        labels=fields["tags"],
        slots=fields["slots"],
        limits=fields["limits"],
    )
    principal, services = principal_of(request), services_of(request)
    check_worker(principal, worker)

    def work(turn: Turn) -> WorkerView:
        is_new = worker not in turn.cluster.nodes
        view = _register(turn, event, principal)
        if is_new:
            note(request, turn, target=worker)
        return view

    view = await services.engine.do(work)
    services.engine.hear_worker(worker)
    headers = {"X-Ignored-Fields": ", ".join(ignored)} if ignored else {}
    return Response(view, status_code=201, headers=headers)


async def _registration(request: Request[Any, Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a registration, and the names of those that are ignored. Raises Invalid."""
    what = "a mapping, like {id: w-1}"
    given = await request_body.document(request, what)
    ignored = unknown_keys(given, _FIELDS)
    if not isinstance(given, Mapping) or (given.get("protocol") or "plain") != "plain":
        return request_body.checked(given, what, _FIELDS), []
    known = {name: value for name, value in given.items() if name in _FIELDS}
    named = [name for name in ignored if _HEADER_WORD.fullmatch(name)]
    return request_body.checked(known, what, _FIELDS), named[:_MOST_IGNORED]


def _register(turn: Turn, event: WorkerRegistered, principal: Principal) -> WorkerView:
    previous = turn.cluster.nodes.get(event.worker)
    _check_protocol(principal, event, previous)
    if (
        previous is not None
        and event.protocol is Protocol.PLAIN
        and previous.worker.incarnation != event.incarnation
    ):
        _lose_processes(turn, previous)
    turn.apply(event)
    return worker_view(turn.cluster.nodes[event.worker])


def _check_protocol(principal: Principal, event: WorkerRegistered, previous: Node | None) -> None:
    """Raise Forbidden unless the caller's role is that of the protocol, and the worker's name was
    not that of an agent."""
    if principal.role == "agent" and event.protocol is not Protocol.SYNC:
        raise Forbidden(f"worker {event.worker} has joined as an agent; register it as one (sync)")
    if principal.role != "worker":
        return
    if event.protocol is not Protocol.PLAIN:
        raise Forbidden(
            f"the token {principal.name} is for workers of the plain protocol; an agent joins"
            " with a join token (`phalanx token create NAME --role join`)"
        )
    if previous is not None and previous.worker.protocol is not Protocol.PLAIN:
        raise Forbidden(
            f"worker {event.worker} is an agent; choose another name, or ask an admin to remove it"
        )


def _lose_processes(turn: Turn, node: Node) -> None:
    """Fail the tasks of a plain worker that has started again: their processes are gone."""
    for task_id, epoch in list(node.charges):
        if (task_id, epoch) in turn.cluster.residues:
            continue
        job, index = split_task(task_id)
        gang = turn.cluster.gangs.get(job)
        # The loss of another task of the gang may have stopped this one.
        if gang is None or gang.tasks[index].epoch != epoch:
            continue
        if gang.tasks[index].state in (State.RUNNING, State.PREEMPTING):
            turn.apply(Vanished(task_id, epoch))


@post(
    "/workers/{worker_id:str}/heartbeat",
    opt={"allowed": PLAIN_WORKERS},
    status_code=200,
    summary="Report that a worker is alive",
)
async def heartbeat(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> WorkerView:
    """A plain worker that was lost recovers with it."""
    check_worker(principal_of(request), worker_id)

    def work(turn: Turn) -> WorkerView:
        node = _node(turn, worker_id)
        if node.worker.protocol is not Protocol.PLAIN:
            raise Conflict(f"worker {worker_id} is an agent; it reports over sync")
        if node.worker.lost_at is not None:
            turn.apply(WorkerReturned(worker_id))
        return worker_view(turn.cluster.nodes[worker_id])

    services = services_of(request)
    view = await services.engine.do(work)
    services.engine.hear_worker(worker_id)
    return view


def _node(turn: Turn, worker: str) -> Node:
    node = turn.cluster.nodes.get(worker)
    if node is None:
        raise Unknown(f"worker {worker[:80]} is not registered; register it first")
    return node


@get("/workers", opt={"allowed": USERS}, summary="List the workers")
async def list_workers(request: Request[Any, Any, Any]) -> list[WorkerView]:
    """With the tasks of the namespaces that the caller may see."""
    principal = principal_of(request)

    def work(turn: Turn) -> list[WorkerView]:
        may_see = partial(may_see_task, principal, turn.cluster.gangs)
        return [worker_view(node, may_see) for _, node in sorted(turn.cluster.nodes.items())]

    return await services_of(request).engine.do(work)


ROUTES = [register, heartbeat, list_workers]
