"""Whether a gang can be placed now. Every decision of a plan is checked against this."""

from typing import TYPE_CHECKING

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Protocol
from phalanx.core.queues import stopped_by

if TYPE_CHECKING:
    from phalanx.core.cluster import Cluster


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
    elif (worker := unfenced_worker(tx.base, gang)) is not None:
        refusal = f"it is fenced, and an earlier attempt may be alive on {worker}"
    if refusal is not None:
        raise Conflict(f"job {job.id} cannot be placed: {refusal}")


def unfenced_worker(cluster: "Cluster", gang: Gang) -> str | None:
    """A worker on which an earlier attempt of a fenced job may be alive, or None.

    An agent that was lost has stopped its fenced tasks by itself; a plain worker does not.
    """
    if not gang.job.spec.fence:
        return None
    for (task, _), residue in cluster.residues.items():
        if split_task(task)[0] == gang.job.id:
            node = cluster.nodes.get(residue.worker)
            is_plain = node is not None and node.worker.protocol is Protocol.PLAIN
            if node is not None and (node.worker.lost_at is None or is_plain):
                return residue.worker
    return None
