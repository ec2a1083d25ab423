"""Whether a gang can be placed now. Every decision of a plan is checked against this."""

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.queues import stopped_by


def check_startable(tx: Changes, gang: Gang, version: int) -> None:
    """Raise Conflict unless the job is pending, can start, and has not changed since the plan."""
    job, pending = gang.job, gang.job.pending
    refusal = None
    if version != job.version:
        refusal = f"it has changed since version {version}"
    elif job.is_ending:
        refusal = f"it is {job.phase}"
    elif job.on_hold:
        refusal = "it is on hold"
    elif (queue := stopped_by(tx.base.queues, job.spec.queue)) is not None:
        refusal = f"queue {queue} is stopped"
    elif pending is not None and pending.after:
        refusal = f"it runs after {', '.join(pending.after)}"
    elif job.awaits_members:
        refusal = "members of it are missing"
    elif pending is not None and pending.not_before > tx.now:
        refusal = "its backoff has not ended"
    elif job.reservation is not None:
        refusal = "it already has a reservation"
    elif not gang.places_tasks_alone and not gang.is_idle:
        refusal = "it has started, and restarts only as a whole"
    elif (worker := _unfenced(tx, gang)) is not None:
        refusal = f"it is fenced, and an earlier attempt may be alive on {worker}"
    if refusal is not None:
        raise Conflict(f"job {job.id} cannot be placed: {refusal}")


def _unfenced(tx: Changes, gang: Gang) -> str | None:
    """A reachable worker with a residue of the job, whose lease is still being renewed."""
    if not gang.job.spec.fence:
        return None
    for (task, _), residue in tx.base.residues.items():
        if split_task(task)[0] == gang.job.id:
            node = tx.base.nodes.get(residue.worker)
            if node is not None and node.worker.lost_at is None:
                return residue.worker
    return None
