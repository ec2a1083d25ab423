"""Suspicion against workers: jobs avoid a worker that failed them, and failures that follow the
worker cordon it.

The cause of a failure may be the job. So a suspicion counts only after the job has run without the
worker: it is done, or has run for longer than it had run there.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.handlers.requeue import avoid
from phalanx.core.model import Phase, Suspicion, SuspicionKind, Task, Worker
from phalanx.core.records import WorkerCordoned
from phalanx.core.time_units import MINUTE

#: How many suspicions a worker keeps, as a multiple of those that cordon it.
_KEPT = 8


def blame(tx: Changes, gang: Gang, task: Task, kind: SuspicionKind | None) -> bool:
    """Let the next attempt avoid the task's worker; with a kind, also suspect the worker. Whether
    the worker is suspected now."""
    node = tx.find_node(task.worker)
    if node is None:
        return False
    worker, job = node.worker, gang.job
    elsewhere = [each for each in job.avoid if each != worker.id]
    avoid(tx, gang, [worker.id])
    if kind is None:
        return False
    if elsewhere:  # the job fails on several workers, so the workers are not to blame
        _acquit(tx, job.id, [*elsewhere, worker.id])
        return False
    if worker.cordoned is None:
        ran = 0 if task.started_at is None else tx.now - task.started_at
        suspicion = Suspicion(job.id, tx.now, job.owner, kind, ran)
        if kind is SuspicionKind.VALUE:  # the other workers of the gang had normal values
            workers = {each.worker for each in gang.tasks if each.worker is not None}
            suspicion = replace(suspicion, counts=len(workers) > 1)
        others = tuple(each for each in worker.suspicions if each.job != job.id)
        _suspect(tx, worker, (*others, suspicion))
    return True


def judge_job(tx: Changes, gang: Gang, verdict: Phase) -> None:
    """Settle the suspicions of a job that ends: they count if it is done without the worker."""
    job = gang.job
    for name in job.avoid:
        node = tx.find_node(name)
        suspicions = () if node is None else node.worker.suspicions
        if node is None or not any(each.job == job.id and not each.counts for each in suspicions):
            continue
        if verdict is Phase.DONE and all(task.worker != name for task in gang.tasks):
            counting = (replace(s, counts=True) if s.job == job.id else s for s in suspicions)
            _suspect(tx, node.worker, tuple(counting))
        else:
            _acquit(tx, job.id, [name])


def _acquit(tx: Changes, job: str, workers: list[str]) -> None:
    """Drop the suspicions that a job has raised against these workers."""
    for name in workers:
        node = tx.find_node(name)
        if node is not None and any(s.job == job for s in node.worker.suspicions):
            others = tuple(s for s in node.worker.suspicions if s.job != job)
            tx.set_worker(replace(node.worker, suspicions=others))


def _suspect(tx: Changes, worker: Worker, suspicions: tuple[Suspicion, ...]) -> None:
    """Note the suspicions, or cordon the worker if enough of them count. The last open worker stays
    open."""
    settings = tx.base.settings
    recent = [each for each in suspicions if each.at > tx.now - settings.suspect_window]
    counting = [each for each in recent if each.counts or _runs_elsewhere(tx, worker.id, each)]
    others = (node for node in tx.base.nodes.values() if node.worker.id != worker.id)
    is_enough = len(counting) >= settings.suspect_jobs and _follow_worker(counting)
    if not is_enough or not any(node.is_open for node in others):
        kept = tuple(recent[-_KEPT * settings.suspect_jobs :])
        tx.set_worker(replace(worker, suspicions=kept))
        return
    reason = _reason(counting, settings.suspect_window // MINUTE)
    tx.set_worker(replace(worker, suspicions=(), cordoned=reason))
    tx.record(WorkerCordoned(worker.id, reason))


def _runs_elsewhere(tx: Changes, worker: str, suspicion: Suspicion) -> bool:
    """Whether the job has run without the worker for longer than it had run there."""
    gang = tx.base.gangs.get(suspicion.job)
    attempt = None if gang is None else gang.job.attempt
    if gang is None or attempt is None or attempt.healthy_since is None:
        return False
    is_longer = tx.now - attempt.healthy_since > suspicion.ran
    return is_longer and all(task.worker != worker for task in gang.started())


def _follow_worker(suspicions: Sequence[Suspicion]) -> bool:
    """Whether the jobs have nothing but the worker in common: they are of several users, or no
    program of theirs has run."""
    is_start = all(each.kind is SuspicionKind.START for each in suspicions)
    return is_start or len({each.owner for each in suspicions}) > 1


def _reason(suspicions: Sequence[Suspicion], minutes: int) -> str:
    kinds = {each.kind for each in suspicions}
    what = "failed"
    if kinds == {SuspicionKind.START}:
        what = "could not be started"
    elif SuspicionKind.VALUE in kinds:
        what = "failed or had an abnormal value"
    users = len({each.owner for each in suspicions})
    of_users = f" of {users} users" if users > 1 else ""
    jobs = f"{len(suspicions)} jobs{of_users}"
    return f"{jobs} {what} on this worker within {minutes} minutes, and not elsewhere"
