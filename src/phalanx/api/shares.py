"""What every queue uses and deserves, and what a change of a queue would do."""

from collections.abc import Mapping
from typing import Any

from litestar import Request, get, post
from litestar.openapi.spec import Schema
from litestar.params import FromPath
from msgspec.structs import replace

from phalanx.api import request_body
from phalanx.api.auth import USERS, principal_of
from phalanx.api.forecast_views import victim_view, victims_in_words
from phalanx.api.services import services_of
from phalanx.core.errors import Unknown
from phalanx.core.events import QueueSet
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.spec import quantities
from phalanx.core.spec.schema import QUEUE_FIELDS
from phalanx.core.text import listed
from phalanx.core.time_units import Micros
from phalanx.engine.turn import Turn
from phalanx.identity.principal import Principal
from phalanx.plan.explain.queue_shares import (
    QueueChangeEffects,
    SettledShare,
    effects_of_queues,
    queue_shares,
)
from phalanx.plan.state.planner_state import PlannerState
from phalanx.wire.plan import VictimView
from phalanx.wire.shares import QueuePlanView, QueueShareView, SharesView, StartView

_OBJECT, _INTEGER = Schema(type="object"), Schema(type="integer")  # type: ignore[arg-type]
_BODY = request_body.documented(
    {"weight": _INTEGER, "quota": _OBJECT, "limit": _OBJECT},
    {"weight": 3},
)


@get("/shares", opt={"allowed": USERS}, summary="Show what every queue uses and deserves")
async def shares(request: Request[Any, Any, Any]) -> SharesView:
    """At most a second old. The sums cover all namespaces."""
    return await services_of(request).snapshots.ask(_shares)


def _shares(state: PlannerState, now: Micros) -> SharesView:
    capacity: dict[str, int] = {}
    for node in state.nodes.values():
        if node.worker.lost_at is None:
            for name, amount in node.worker.resources.items():
                capacity[name] = capacity.get(name, 0) + amount
    queues = tuple(_view(share) for share in queue_shares(state.at(now)))
    return SharesView(quantities.native(capacity), queues)


def _view(share: SettledShare) -> QueueShareView:
    queue = share.queue
    return QueueShareView(
        queue=queue.name,
        weight=queue.weight,
        used=quantities.native(share.used),
        requested=quantities.native(share.requested),
        deserved=quantities.native(share.deserved),
        borrowed=quantities.native(share.borrowed),
        quota=quantities.native(queue.quota),
        limit=quantities.native(queue.limit),
        running=share.running,
        pending=share.pending,
        parent=queue.parent,
        stopped=queue.stopped,
    )


@post(
    "/queues/{name:str}/plan",
    operation_class=_BODY,
    opt={"allowed": USERS},
    status_code=200,
    summary="Show what a change of a queue would do",
)
async def plan_queue(request: Request[Any, Any, Any], name: FromPath[str]) -> QueuePlanView:
    """Nothing is changed. Fields that are left out stay as they are."""
    services, principal = services_of(request), principal_of(request)
    given = await request_body.document(request, "a mapping, like {weight: 3}")
    fields = request_body.checked(given, "a mapping, like {weight: 3}", QUEUE_FIELDS)
    named = given if isinstance(given, dict) else {}
    changes = {field: value for field, value in fields.items() if field in named}

    def preview(turn: Turn) -> dict[str, Queue]:
        queue = turn.cluster.queues.get(name)
        if queue is None:
            raise Unknown(f"there is no queue {name[:80]}")
        after = replace(queue, **changes)
        turn.cluster.preview(QueueSet(after), turn.now)
        return {**turn.cluster.queues, name: after}

    queues = await services.engine.do(preview)

    def question(state: PlannerState, now: Micros) -> QueuePlanView:
        effects = effects_of_queues(state, now, queues)
        price = services.engine.settings.core.price
        return _effects_view(effects, state, now, principal, price)

    with services.queue_plans.call(principal.name):
        return await services.snapshots.ask(question, fresh=True)


def _effects_view(
    effects: QueueChangeEffects,
    state: PlannerState,
    now: Micros,
    principal: Principal,
    price: Mapping[str, int],
) -> QueuePlanView:
    starts = tuple(_start_view(state.gangs[job], principal) for job in effects.starts)
    waits = tuple(_start_view(state.gangs[job], principal) for job in effects.waits)
    victims = tuple(
        victim_view(state.gangs[victim.job], victim, now, price, principal)
        for victim in effects.victims
    )
    return QueuePlanView(
        message=_message(starts, waits, victims),
        before=tuple(map(_view, effects.before)),
        after=tuple(map(_view, effects.after)),
        starts=starts,
        waits=waits,
        victims=victims,
    )


def _start_view(gang: Gang, principal: Principal) -> StartView:
    job = gang.job
    if not principal.may_see(job.spec.namespace):
        return StartView(job.spec.queue)
    return StartView(job.spec.queue, job.id, job.full_name)


def _message(
    starts: tuple[StartView, ...], waits: tuple[StartView, ...], victims: tuple[VictimView, ...]
) -> str:
    """What the next plan would do otherwise, in one sentence."""
    if not starts and not waits and not victims:
        return "the next plan would start and evict the same jobs"
    parts = []
    if starts:
        parts.append(f"start {_names(starts)}")
    if victims:
        parts.append(f"evict {victims_in_words(victims)}")
    if waits:
        parts.append(f"not start {_names(waits)}")
    return f"the next plan would {', and '.join(parts)}"


def _names(starts: tuple[StartView, ...]) -> str:
    return listed([each.name or "a job of another namespace" for each in starts])


ROUTES = [shares, plan_queue]
