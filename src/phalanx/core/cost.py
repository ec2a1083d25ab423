"""What a stop would cost: the work since the last point from which it could go on."""

from phalanx.core.gang import Gang
from phalanx.core.model import Task
from phalanx.core.node import GPU
from phalanx.core.spec import CheckpointPolicy, Micros


def at_risk(gang: Gang, now: Micros, tasks: list[Task] | None = None) -> int:
    """Thousandths of a GPU times microseconds that stopping these tasks now would lose.

    All started tasks unless some are named. A job that saves when asked to stop loses its grace.
    """
    job = gang.job
    lost = 0
    for task in gang.started() if tasks is None else tasks:
        if task.started_at is None:
            continue
        unsafe = now - max(task.started_at, job.safe_at or 0)
        if job.spec.checkpoint is not CheckpointPolicy.NONE:
            unsafe = min(unsafe, job.spec.grace)
        lost += max(0, unsafe) * gang.role(task.index).resources.get(GPU, 0)
    return lost
