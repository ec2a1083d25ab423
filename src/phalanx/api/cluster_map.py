"""The map of the cluster: every worker with its GPUs, and the job on each of them."""

from typing import Any

from litestar import Request, get
from msgspec.structs import replace

from phalanx.api.auth import USERS, principal_of
from phalanx.api.services import services_of
from phalanx.api.worker_views import worker_status
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.node import DEVICE, GPU, Node
from phalanx.core.spec import quantities
from phalanx.core.time_units import Micros
from phalanx.identity.principal import Principal
from phalanx.plan.state.planner_state import PlannerState
from phalanx.wire.overview import MapJob, MapTask, MapView, MapWorker
from phalanx.wire.times import iso_time_or_none


@get("/map", opt={"allowed": USERS}, summary="Show every worker with the job on each GPU")
async def cluster_map(request: Request[Any, Any, Any]) -> MapView:
    """At most a second old. Of jobs that the caller may not see, only queue and phase are shown."""
    view = await services_of(request).snapshots.ask(_map)
    principal = principal_of(request)
    if principal.confined_to is None:
        return view
    return replace(view, jobs=tuple(_visible(job, principal) for job in view.jobs))


def _visible(job: MapJob, principal: Principal) -> MapJob:
    namespace = (job.name or "").partition("/")[0]
    return job if principal.may_see(namespace) else MapJob(job.queue, job.phase)


def _map(state: PlannerState, now: Micros) -> MapView:
    positions: dict[str, int] = {}
    workers = tuple(_worker(node, positions) for _, node in sorted(state.nodes.items()))
    jobs = tuple(_job(job, state.gangs.get(job)) for job in positions)
    return MapView(workers, jobs, _smallest_request(state))


def _worker(node: Node, positions: dict[str, int]) -> MapWorker:
    worker = node.worker
    charges = [(task, charge) for (task, _), charge in node.charges.items()]
    tasks = []
    for task, charge in [*charges, *node.gathered.items()]:
        job, index = split_task(task)
        tasks.append(MapTask(positions.setdefault(job, len(positions)), index, charge.devices))
    return MapWorker(
        id=worker.id,
        status=worker_status(node),
        gpus=worker.resources.get(GPU, 0) // DEVICE,
        resources=quantities.native(worker.resources),
        free=quantities.native({name: max(0, node.free(name)) for name in worker.resources}),
        labels=worker.labels,
        tasks=tuple(tasks),
        cordoned=worker.cordoned,
        lost_at=iso_time_or_none(worker.lost_at),
    )


def _job(job: str, gang: Gang | None) -> MapJob:
    """A job that has ended can still occupy a worker, until its processes are known to be gone."""
    if gang is None:
        return MapJob("", "ended", job)
    reserved = [task.placed_at for task in gang.tasks if task.placed_at is not None]
    since = iso_time_or_none(min(reserved, default=None))
    return MapJob(gang.job.spec.queue, gang.job.phase, job, gang.job.full_name, since)


def _smallest_request(state: PlannerState) -> float | None:
    """The fewest GPUs that a task of a pending gang requests."""
    amounts = (
        amount
        for bucket in state.pending.buckets.values()
        for role in bucket.first.roles
        for name, amount in role.request.resources
        if name == GPU and amount
    )
    smallest = min(amounts, default=None)
    return None if smallest is None else smallest / DEVICE


ROUTES = [cluster_map]
