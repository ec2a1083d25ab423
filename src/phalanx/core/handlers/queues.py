"""Queues: setting and removing them. No change leaves a job without its queue."""

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import QueueRemoved, QueueSet, QueuesSet
from phalanx.core.queues import DEFAULT, changed


def queue_set(tx: Changes, event: QueueSet) -> None:
    for queue in changed(tx.base.queues, [event.queue]):
        tx.queues[queue.name] = queue
        tx.record("QueueSet", queue=queue.name)
        tx.replan = True


def queues_set(tx: Changes, event: QueuesSet) -> None:
    news = changed(tx.base.queues, event.queues)
    if not news:
        return
    for queue in news:
        tx.queues[queue.name] = queue
        tx.record("QueueSet", queue=queue.name)
    tx.record("QueuesSet", queues=[queue.name for queue in news], by=event.by)
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
    tx.record("QueueRemoved", queue=name)
    tx.replan = True
