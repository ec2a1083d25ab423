"""Lost work: what a stop costs, and charging it to the job and to its queue's account.

Lost is the work since the last point from which the job can resume.
"""

from collections.abc import Iterable, Mapping

from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.ledger import Account, AccountEntry, JobLosses, Loss, LostTo, gpu_seconds
from phalanx.core.model import Task
from phalanx.core.node import GPU
from phalanx.core.records import WorkLost
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import CheckpointPolicy, JobSpec, Resources, total
from phalanx.core.time_units import HOUR, Micros

#: How many units of a resource a price is for; of other resources, one.
_PRICED = {"cpu": 1000, "gpu": 1000, "memory": 2**30}

#: Causes after which the work is not wanted any more, so that nothing is lost.
_UNWANTED = (CauseKind.CANCEL, CauseKind.COMPLETE, CauseKind.DEPENDENCY, CauseKind.SCHEDULE_TIMEOUT)


def lost_work(gang: Gang, tasks: Iterable[Task]) -> Resources:
    """The work that tasks have lost which ended or stopped, as amounts times microseconds.

    Work counts until the stop request: a task that saved after that has lost nothing.
    """
    safe_at = _safe_at(gang)
    lost: list[Resources] = []
    for task in tasks:
        place = task.place
        if place is None or place.started_at is None or task.ended_at is None:
            continue
        saved_at = 0 if task.checkpoint is None else task.checkpoint.saved_at
        until = task.ended_at if place.stopping_at is None else place.stopping_at
        lost.append(_work(gang, task, until - max(place.started_at, safe_at, saved_at)))
    return total(lost)


def work_at_risk(gang: Gang, now: Micros, tasks: Iterable[Task]) -> Resources:
    """The work that would be lost if these tasks were stopped now: those that save a checkpoint
    lose at most their grace period."""
    job, safe_at = gang.job, _safe_at(gang)
    most = now if job.spec.checkpoint is CheckpointPolicy.NONE else job.spec.grace
    return total(
        _work(gang, task, min(most, now - max(task.started_at, safe_at)))
        for task in tasks
        if task.started_at is not None
    )


def _safe_at(gang: Gang) -> Micros:
    """The time up to which the work of the whole gang is saved."""
    return (gang.job.attempt.safe_at if gang.job.attempt is not None else None) or 0


def _work(gang: Gang, task: Task, span: Micros) -> Resources:
    return {name: amount * max(0, span) for name, amount in gang.role(task.index).resources.items()}


def long_run(spec: JobSpec, settings: CoreSettings) -> Micros | None:
    """How long an attempt may run without saved work before an event warns about it; None if the
    job saves checkpoints or ends sooner."""
    limit = settings.long_running
    ends_before = spec.time_limit is not None and spec.time_limit <= limit
    return None if ends_before or spec.checkpoint is not CheckpointPolicy.NONE else limit


def money(work: Resources, prices: Mapping[str, int]) -> int:
    """The price of work in millionths. Prices are in millionths per hour of one unit."""
    return sum(
        round(work[name] * price / (_PRICED.get(name, 1) * HOUR))
        for name, price in prices.items()
        if name in work
    )


def charge_lost_work(tx: Changes, gang: Gang, cause: Cause, work: Resources) -> None:
    """Add work that a stop has lost to the losses of the job and of its queue."""
    if cause.kind in _UNWANTED:
        return
    is_lost = any(work.values())
    if not is_lost and not cause.is_eviction:
        return
    loss = Loss(
        at=tx.now,
        to=LostTo.EVICTION if cause.is_eviction else LostTo.FAILURE,
        cause=cause,
        gpu=work.get(GPU, 0),
        cost=money(work, tx.base.settings.price),
    )
    job = gang.job
    losses = (job.losses or JobLosses()).plus(loss)
    tx.set_job(gang, losses=losses)
    queue = job.spec.queue
    account = tx.accounts.get(queue) or tx.base.accounts.get(queue) or Account(queue)
    tx.accounts[queue] = account.plus(loss, job.id, AccountEntry(job.full_name, losses.total))
    if is_lost:
        cost = loss.cost / 1_000_000
        tx.record(
            WorkLost(job.id, job.epoch, loss.to, str(cause), gpu_seconds(loss.gpu), cost, cause.job)
        )
