"""What a stop costs: the work since the last point from which it could go on."""

from collections.abc import Iterable, Mapping

from phalanx.core.gang import Gang
from phalanx.core.model import Task
from phalanx.core.node import GPU
from phalanx.core.spec.job import HOUR, CheckpointPolicy, Micros, Resources

#: How much of a resource has a price of its own; of others it is one.
_PRICED = {"cpu": 1000, "gpu": 1000, "memory": 2**30}


def at_risk(gang: Gang, now: Micros, tasks: list[Task] | None = None) -> int:
    """Thousandths of a GPU times microseconds that stopping these tasks now would lose.

    All started tasks unless some are named. A job that saves when asked to stop loses its grace.
    """
    return lost_work(gang, now, gang.started() if tasks is None else tasks).get(GPU, 0)


def lost_work(
    gang: Gang, now: Micros, tasks: Iterable[Task], unwarned: Iterable[int] = ()
) -> Resources:
    """Amounts times microseconds that end with these tasks. The unwarned cannot save, nor can
    their siblings where only whole sets count."""
    job, unwarned = gang.job, set(unwarned)
    policy = job.spec.checkpoint
    nobody_saves = policy is CheckpointPolicy.NONE or (unwarned and policy is CheckpointPolicy.ALL)
    lost: Resources = {}
    for task in tasks:
        if task.started_at is None:
            continue
        unsafe = now - max(task.started_at, job.safe_at or 0)
        if not nobody_saves and task.index not in unwarned:
            unsafe = min(unsafe, job.spec.grace)
        for name, amount in gang.role(task.index).resources.items():
            lost[name] = lost.get(name, 0) + max(0, unsafe) * amount
    return lost


def money(work: Resources, prices: Mapping[str, int]) -> int:
    """What amounts times microseconds cost, at prices in millionths for an hour of one."""
    return sum(
        round(work[name] * price / (_PRICED.get(name, 1) * HOUR))
        for name, price in prices.items()
        if name in work
    )
