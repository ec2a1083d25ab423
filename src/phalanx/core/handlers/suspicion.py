"""Suspicion against workers: jobs avoid a worker that failed them, and several jobs cordon it."""

from msgspec.structs import replace

from phalanx.core.changes import Changes
from phalanx.core.gang import Gang
from phalanx.core.handlers.requeue import avoid
from phalanx.core.model import Suspicion, Task, Worker
from phalanx.core.records import WorkerCordoned
from phalanx.core.time_units import MINUTE


def blame(
    tx: Changes, gang: Gang, task: Task, *, suspect: bool = True, by_value: bool = False
) -> bool:
    """Let the next attempt avoid the task's worker; with `suspect`, also suspect the worker, for a
    failure or for an abnormal value. Whether the worker is suspected now."""
    node = tx.find_node(task.worker)
    if node is None:
        return False
    worker, job = node.worker, gang.job
    elsewhere = [each for each in job.avoid if each != worker.id]
    avoid(tx, gang, [worker.id])
    if not suspect:
        return False
    if elsewhere:  # the job fails on several workers, so the workers are not to blame
        _acquit(tx, job.id, [*elsewhere, worker.id])
        return False
    if worker.cordoned is None:
        since = tx.now - tx.base.settings.suspect_window
        recent = tuple(s for s in worker.suspicions if s.at > since and s.job != job.id)
        _suspect(tx, worker, (*recent, Suspicion(job.id, tx.now, by_value)))
    return True


def _acquit(tx: Changes, job: str, workers: list[str]) -> None:
    """Drop the suspicions that a job has raised against these workers."""
    for name in workers:
        node = tx.find_node(name)
        if node is not None and any(s.job == job for s in node.worker.suspicions):
            others = tuple(s for s in node.worker.suspicions if s.job != job)
            tx.set_worker(replace(node.worker, suspicions=others))


def _suspect(tx: Changes, worker: Worker, suspicions: tuple[Suspicion, ...]) -> None:
    """Note the suspicions, or cordon the worker if there are enough. The last open worker stays
    open."""
    settings = tx.base.settings
    others = (node for node in tx.base.nodes.values() if node.worker.id != worker.id)
    if len(suspicions) < settings.suspect_jobs or not any(node.is_open for node in others):
        kept = suspicions[-settings.suspect_jobs :]
        tx.set_worker(replace(worker, suspicions=kept))
        return
    minutes = settings.suspect_window // MINUTE
    failed = "failed first"
    if any(suspicion.by_value for suspicion in suspicions):
        failed = "failed or had an abnormal value first"
    reason = f"{len(suspicions)} jobs {failed} on this worker within {minutes} minutes"
    tx.set_worker(replace(worker, suspicions=(), cordoned=reason))
    tx.record(WorkerCordoned(worker.id, reason))
