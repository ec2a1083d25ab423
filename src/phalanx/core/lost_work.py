"""Lost work: what a stop costs, and charging it to the job and to its queue's account.

Lost is the work since the last point from which the job can resume.
"""

from collections.abc import Iterable, Mapping, Sequence

from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.ledger import Account, AccountEntry, JobLosses, Loss, LostTo, gpu_seconds
from phalanx.core.model import Task
from phalanx.core.node import GPU
from phalanx.core.records import WorkLost
from phalanx.core.spec.job import CheckpointPolicy, Resources
from phalanx.core.states import State
from phalanx.core.time_units import HOUR, Micros

#: How many units of a resource a price is for; of other resources, one.
_PRICED = {"cpu": 1000, "gpu": 1000, "memory": 2**30}

#: Causes after which the work is not wanted any more, so that nothing is lost.
_UNWANTED = (CauseKind.CANCEL, CauseKind.COMPLETE, CauseKind.DEPENDENCY, CauseKind.SCHEDULE_TIMEOUT)


def lost_work(
    gang: Gang, now: Micros, tasks: Iterable[Task], unwarned: Iterable[int] = ()
) -> Resources:
    """The work that is lost if these tasks stop now, as amounts times microseconds.

    A done task among them loses its work up to its end. Unwarned tasks have no chance to save. With
    `checkpoint: all` their siblings have none either.
    """
    job, unwarned = gang.job, set(unwarned)
    policy = job.spec.checkpoint
    none_saves = policy is CheckpointPolicy.NONE or (unwarned and policy is CheckpointPolicy.ALL)
    safe_at = (job.attempt.safe_at if job.attempt is not None else None) or 0
    lost: Resources = {}
    for task in tasks:
        if task.started_at is None:
            continue
        until = now if task.state is not State.DONE else task.ended_at or now
        unsafe = until - max(task.started_at, safe_at)
        if not none_saves and task.index not in unwarned:
            unsafe = min(unsafe, job.spec.grace)
        for name, amount in gang.role(task.index).resources.items():
            lost[name] = lost.get(name, 0) + max(0, unsafe) * amount
    return lost


def money(work: Resources, prices: Mapping[str, int]) -> int:
    """The price of work in millionths. Prices are in millionths per hour of one unit."""
    return sum(
        round(work[name] * price / (_PRICED.get(name, 1) * HOUR))
        for name, price in prices.items()
        if name in work
    )


def charge_lost_work(
    tx: Changes, gang: Gang, cause: Cause, stopping: Sequence[Task], failed: Sequence[Task] = ()
) -> None:
    """Add the work that these tasks lose now to the losses of the job and of its queue."""
    if cause.kind in _UNWANTED:
        return
    # If a worker stops a task by itself, no job and no operator has evicted it.
    is_eviction = cause.kind is CauseKind.EVICTION and cause.by is not None
    work = lost_work(gang, tx.now, [*stopping, *failed], unwarned=[task.index for task in failed])
    if not work and not is_eviction:
        return
    loss = Loss(
        at=tx.now,
        to=LostTo.EVICTION if is_eviction else LostTo.FAILURE,
        by=_evictor(tx, cause.by or "") if is_eviction else str(cause),
        gpu=work.get(GPU, 0),
        cost=money(work, tx.base.settings.price),
    )
    job = gang.job
    losses = (job.losses or JobLosses()).plus(loss)
    tx.set_job(gang, losses=losses)
    queue = job.spec.queue
    account = tx.accounts.get(queue) or tx.base.accounts.get(queue) or Account(queue)
    tx.accounts[queue] = account.plus(loss, job.id, AccountEntry(job.full_name, losses.total))
    cost = loss.cost / 1_000_000
    tx.record(WorkLost(job.id, job.epoch, loss.to, loss.by, gpu_seconds(loss.gpu), cost))


def _evictor(tx: Changes, by: str) -> str:
    """The full name of the evicting job, or the name of the operator."""
    gang = tx.base.gangs.get(by)
    return gang.job.full_name if gang is not None else by or "operator"
