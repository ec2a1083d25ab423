"""Writing down what a stop has cost, on the job and on its queue's account, as it happens."""

from collections.abc import Sequence

from phalanx.core.causes import Cause, CauseKind
from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.ledger import Account, AccountEntry, Loss, Lost, LostTo, gpu_seconds
from phalanx.core.lost_work import lost_work, money
from phalanx.core.model import Task
from phalanx.core.node import GPU
from phalanx.core.records import WorkLost

#: Whoever ends a job for these reasons has lost nothing that was still wanted.
_UNWANTED = (CauseKind.CANCEL, CauseKind.COMPLETE, CauseKind.DEPENDENCY, CauseKind.SCHEDULE_TIMEOUT)


def lose(
    tx: Changes, gang: Gang, cause: Cause, told: Sequence[Task], fallen: Sequence[Task] = ()
) -> None:
    """These tasks have run until now: some are told to stop for this cause, others fell."""
    if cause.kind in _UNWANTED:
        return
    # A worker that stops a task of its own accord evicts it for nobody.
    is_eviction = cause.kind is CauseKind.EVICTION and cause.by is not None
    work = lost_work(gang, tx.now, [*told, *fallen], unwarned=[task.index for task in fallen])
    if not work and not is_eviction:
        return
    loss = Loss(
        at=tx.now,
        to=LostTo.EVICTION if is_eviction else LostTo.FAILURE,
        by=_who(tx, cause.by or "") if is_eviction else str(cause),
        gpu=work.get(GPU, 0),
        cost=money(work, tx.base.settings.price),
    )
    job = gang.job
    lost = (job.lost or Lost()).plus(loss)
    tx.set_job(gang, lost=lost)
    queue = job.spec.queue
    account = tx.accounts.get(queue) or tx.base.accounts.get(queue) or Account(queue)
    line = AccountEntry(f"{job.spec.namespace}/{job.name}", lost.total)
    tx.accounts[queue] = account.plus(loss, job.id, line)
    cost = loss.cost / 1_000_000
    tx.record(WorkLost(job.id, job.epoch, loss.to, loss.by, gpu_seconds(loss.gpu), cost))


def _who(tx: Changes, by: str) -> str:
    """A job by the name that people know, and anybody else as they are called."""
    gang = tx.base.gangs.get(by)
    return f"{gang.job.spec.namespace}/{gang.job.name}" if gang is not None else by or "operator"
