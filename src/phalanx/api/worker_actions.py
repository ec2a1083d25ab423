"""Actions of operators on workers: remove, cordon, uncordon, drain, release the loss brake."""

from typing import Annotated, Any

from litestar import Request, Response, delete, post
from litestar.params import FromPath, QueryParameter

from phalanx.api.admission import check_managed
from phalanx.api.audit import note
from phalanx.api.auth import ADMINS, principal_of
from phalanx.api.idempotency import IdempotencyKey, claim
from phalanx.api.services import services_of
from phalanx.api.worker_views import worker_view
from phalanx.core.events import CordonChanged, DrainRequested, WorkerRemoved
from phalanx.core.records import JobEvicted
from phalanx.core.spec.durations import duration
from phalanx.core.spec.fields import FieldPath, text
from phalanx.engine.errors import NoAnswer, UncertainOutcome
from phalanx.engine.turn import Turn
from phalanx.identity.principal import EVERY
from phalanx.wire.workers import DrainReply, WorkerView

Reason = Annotated[str | None, QueryParameter(description="Why; shown with the worker.")]
Deadline = Annotated[
    str | None,
    QueryParameter(description="How long its jobs may run before they are evicted, like 2h."),
]


@delete(
    "/workers/{worker_id:str}",
    opt={"allowed": ADMINS, "action": "remove worker", "decided_by": "ManageWorker"},
    status_code=204,
    summary="Remove a worker",
)
async def remove(
    request: Request[Any, Any, Any], worker_id: FromPath[str], key: IdempotencyKey = None
) -> None:
    """For a machine that is gone for good: none of its processes is assumed to be alive.

    Its credential is revoked first, so that it cannot register again.
    """
    services, by = services_of(request), principal_of(request).name
    async with claim(request, key) as claimed:
        if claimed.earlier is not None:
            return
        services.engine.check_leading()
        was_revoked = await services.tokens.revoke_worker(worker_id)

        def work(turn: Turn) -> None:
            # A worker that has joined and never registered has only a credential.
            if worker_id in turn.cluster.nodes or not was_revoked:
                turn.apply(WorkerRemoved(worker_id, by))
            claimed.use(turn)
            note(request, turn, target=worker_id)

        try:
            await services.engine.do(work)
        except NoAnswer as error:
            raise UncertainOutcome(
                f"the credential of worker {worker_id} was revoked, then {error}"
            ) from error


@post(
    "/workers/{worker_id:str}/cordon",
    opt={"allowed": ADMINS, "action": "cordon", "decided_by": "ManageWorker"},
    status_code=200,
    summary="Keep new tasks off a worker",
)
async def cordon(
    request: Request[Any, Any, Any], worker_id: FromPath[str], reason: Reason = None
) -> WorkerView:
    why = _reason(request, reason, "cordoned")

    def work(turn: Turn) -> WorkerView:
        turn.apply(CordonChanged(worker_id, why))
        note(request, turn, target=worker_id)
        return worker_view(turn.cluster.nodes[worker_id])

    return await services_of(request).engine.do(work)


@post(
    "/workers/{worker_id:str}/uncordon",
    opt={"allowed": ADMINS, "action": "uncordon", "decided_by": "ManageWorker"},
    status_code=200,
    summary="Uncordon a worker, and cancel its drain",
)
async def uncordon(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> WorkerView:
    def work(turn: Turn) -> WorkerView:
        turn.apply(CordonChanged(worker_id, None))
        note(request, turn, target=worker_id)
        return worker_view(turn.cluster.nodes[worker_id])

    return await services_of(request).engine.do(work)


@post(
    "/workers/{worker_id:str}/drain",
    opt={"allowed": ADMINS, "action": "drain", "decided_by": "ManageWorker"},
    status_code=200,
    summary="Cordon a worker and evict the jobs on it",
)
async def drain(
    request: Request[Any, Any, Any],
    worker_id: FromPath[str],
    reason: Reason = None,
    deadline: Deadline = None,
) -> Response[DrainReply]:
    """The jobs are placed elsewhere. With `deadline` they may run for that long first."""
    why, by = _reason(request, reason, "drained"), principal_of(request).name
    path = FieldPath()
    with path.at("deadline"):
        delay = 0 if deadline is None else duration(deadline)
    path.raise_problems()

    def work(turn: Turn) -> DrainReply:
        changes = turn.apply(DrainRequested(worker_id, why, by, turn.now + delay))
        note(request, turn, target=worker_id)
        evicted = tuple(r.job for r in changes.records if isinstance(r, JobEvicted))
        return DrainReply(worker_view(turn.cluster.nodes[worker_id]), evicted)

    return Response(await services_of(request).engine.do(work), status_code=200)


@post(
    "/workers/brake/release",
    opt={"allowed": ADMINS, "action": "release brake", "decided_by": "ManageWorker"},
    status_code=204,
    summary="Release the loss brake",
)
async def release_brake(request: Request[Any, Any, Any]) -> None:
    """When many workers fall silent at once, the network is the likely cause, and none is declared
    lost for a while. Release the brake after checking that the workers are gone.
    """
    engine = services_of(request).engine
    await check_managed(request, "worker", EVERY)
    await engine.release_brake()
    await engine.do(lambda turn: note(request, turn))


def _reason(request: Request[Any, Any, Any], given: str | None, action: str) -> str:
    by = principal_of(request).name
    return text(given)[:1000] if given else action + (f" by {by}" if by else "")


ROUTES = [remove, cordon, uncordon, drain, release_brake]
