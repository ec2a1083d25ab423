"""Queues: setting and removing them. No change leaves a job without its queue."""

from collections.abc import Sequence

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import QueueRemoved, QueueSet, QueuesSet
from phalanx.core.model import Queue
from phalanx.core.queues import DEFAULT, changed
from phalanx.core.records import QueueChanged, QueueCreated, QueueDeleted


def queue_set(tx: Changes, event: QueueSet) -> None:
    _set(tx, [event.queue])


def queues_set(tx: Changes, event: QueuesSet) -> None:
    _set(tx, event.queues, event.by)


def _set(tx: Changes, queues: Sequence[Queue], by: str = "") -> None:
    current = tx.base.queues
    for queue in changed(current, queues):
        tx.queues[queue.name] = queue
        kind = QueueChanged if queue.name in current else QueueCreated
        tx.record(kind(queue.name, by))
        tx.replan = True


def queue_removed(tx: Changes, event: QueueRemoved) -> None:
    name, base = event.queue, tx.base
    if name not in base.queues:
        raise Unknown(f"there is no queue {name}")
    if name == DEFAULT.name:
        raise Conflict("the queue default cannot be removed; jobs that name no queue go there")
    child = next((queue.name for queue in base.queues.values() if queue.parent == name), None)
    if child is not None:
        raise Conflict(f"queue {name} has the child {child}; remove that first")
    user = next((g.job.id for g in base.gangs.values() if g.job.spec.queue == name), None)
    if user is not None:
        raise Conflict(f"queue {name} has unfinished jobs, among them {user}")
    tx.queues[name] = None
    tx.record(QueueDeleted(name))
    tx.replan = True
