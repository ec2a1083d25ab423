"""Views of workers, built from nodes."""

from collections.abc import Callable

from phalanx.core.node import Node
from phalanx.core.spec import quantities
from phalanx.wire.times import iso_time, iso_time_or_none
from phalanx.wire.workers import WorkerView


def worker_view(node: Node, may_see: Callable[[str], bool] = lambda task: True) -> WorkerView:
    """The worker with the tasks that the caller may see, and the number of all its tasks."""
    worker = node.worker
    tasks = sorted({task for task, _ in node.charges})
    return WorkerView(
        id=worker.id,
        status=worker_status(node),
        protocol=worker.protocol,
        incarnation=worker.incarnation,
        exec_addr=worker.address,
        resources=quantities.native(worker.resources),
        free=quantities.native({name: max(0, node.free(name)) for name in worker.resources}),
        tags=worker.labels,
        tasks=tuple(filter(may_see, tasks)),
        task_count=len(tasks),
        registered_at=iso_time(worker.registered_at),
        slots=worker.slots,
        limits=worker.limits,
        cordoned=worker.cordoned,
        lost_at=iso_time_or_none(worker.lost_at),
    )


def worker_status(node: Node) -> str:
    """`active`, `cordoned`, `leaving` or `lost`."""
    worker = node.worker
    if worker.lost_at is not None:
        return "lost"
    if worker.leaving:
        return "leaving"
    return "active" if worker.cordoned is None else "cordoned"
