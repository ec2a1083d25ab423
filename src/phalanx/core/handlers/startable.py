"""Whether a gang may be given places now, whatever a plan says."""

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.queues import stopped_by
from phalanx.core.spec.job import Restart


def check_startable(tx: Changes, gang: Gang, version: int) -> None:
    """Raise Conflict unless the job is as it was in that version, waits, and may start."""
    job = gang.job
    refusal = None
    if version != job.version:
        refusal = f"it has changed since version {version}"
    elif job.verdict is not None or job.drain is not None:
        refusal = f"it is {job.phase}"
    elif job.on_hold:
        refusal = "it is on hold"
    elif (queue := stopped_by(tx.base.queues, job.spec.queue)) is not None:
        refusal = f"queue {queue} is stopped"
    elif job.waits_for:
        refusal = f"it waits for {', '.join(job.waits_for)}"
    elif job.awaits_members:
        refusal = "it waits for members"
    elif job.not_before > tx.now:
        refusal = "its backoff has not ended"
    elif gang.unreleased():
        refusal = "a reservation is open already"
    elif job.spec.restart is not Restart.TASK and not gang.is_idle:
        refusal = "it restarts as one and has started"
    elif (worker := _unfenced(tx, gang)) is not None:
        refusal = f"it is fenced, and an earlier attempt of it may be alive on {worker}"
    if refusal is not None:
        raise Conflict(f"job {job.id} cannot be placed: {refusal}")


def _unfenced(tx: Changes, gang: Gang) -> str | None:
    """A worker that is heard of, and so renews the lease of an earlier attempt."""
    if not gang.job.spec.fence:
        return None
    for (task, _), residue in tx.base.residues.items():
        if split_task(task)[0] == gang.job.id:
            node = tx.base.nodes.get(residue.worker)
            if node is not None and node.worker.lost_at is None:
                return residue.worker
    return None
