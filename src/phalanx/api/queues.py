"""Queues: shares of the cluster in a tree."""

from typing import Any

from litestar import Request, delete, get, put
from litestar.openapi.spec import Schema
from litestar.params import FromPath

from phalanx.api import bodies
from phalanx.api.auth import ADMINS, ANYBODY
from phalanx.api.services import services_of
from phalanx.api.views import queue_view
from phalanx.core import quantities
from phalanx.core.errors import Unknown
from phalanx.core.events import QueueRemoved, QueueSet
from phalanx.core.fields import Field, Place, integer
from phalanx.core.model import Queue
from phalanx.core.names import dns_subdomain
from phalanx.engine.turn import Turn
from phalanx.wire.workers import QueueView

_FIELDS = {
    "parent": Field(dns_subdomain),
    "weight": Field(integer(1, 1_000_000), 1),
    "quota": Field(quantities.capacity, {}),
    "limit": Field(quantities.capacity, {}),
}
_OBJECT = Schema(type="object")  # type: ignore[arg-type]
_BODY = bodies.documented(
    {
        "parent": Schema(type="string"),  # type: ignore[arg-type]
        "weight": Schema(type="integer"),  # type: ignore[arg-type]
        "quota": _OBJECT,
        "limit": _OBJECT,
    },
    {"weight": 3, "quota": {"gpu": 16}, "limit": {"gpu": 32}},
)


@get("/queues", opt={"allowed": ANYBODY}, summary="List the queues")
async def list_queues(request: Request[Any, Any, Any]) -> list[QueueView]:
    def work(turn: Turn) -> list[QueueView]:
        return [queue_view(queue) for _, queue in sorted(turn.cluster.queues.items())]

    return await services_of(request).engine.do(work)


@get("/queues/{name:str}", opt={"allowed": ANYBODY}, summary="Show a queue")
async def show_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueueView:
    def work(turn: Turn) -> QueueView:
        queue = turn.cluster.queues.get(name)
        if queue is None:
            raise Unknown(f"there is no queue {name[:80]}")
        return queue_view(queue)

    return await services_of(request).engine.do(work)


@put("/queues/{name:str}", operation_class=_BODY, opt={"allowed": ADMINS}, summary="Set a queue")
async def set_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueueView:
    """It is made if it is not there; what is left out has its default."""
    place = Place()
    with place.at("name"):
        dns_subdomain(name)
    place.close()
    fields = await bodies.read_one(request, "a mapping, like {weight: 3}", _FIELDS)
    queue = Queue(name=name, **fields)
    await services_of(request).engine.apply(QueueSet(queue))
    return queue_view(queue)


@delete("/queues/{name:str}", opt={"allowed": ADMINS}, status_code=204, summary="Remove a queue")
async def remove_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> None:
    await services_of(request).engine.apply(QueueRemoved(name))


ROUTES = [list_queues, show_queue, set_queue, remove_queue]
