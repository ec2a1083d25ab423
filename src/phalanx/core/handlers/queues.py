"""Queues: a tree with `default` in it, whose shape never strands a job."""

from collections.abc import Mapping, Sequence

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Invalid, Problem, Unknown
from phalanx.core.events import QueueRemoved, QueueSet, QueuesSet
from phalanx.core.model import Queue

DEFAULT = Queue(name="default")


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


def changed(known: Mapping[str, Queue], queues: Sequence[Queue]) -> list[Queue]:
    """Those among these that are not so yet. Raises Invalid if together they make no tree."""
    there = {**known, **{queue.name: queue for queue in queues}}
    for queue in queues:
        above, seen = queue.parent, {queue.name}
        while above is not None:
            path = "parent" if len(queues) == 1 else f"{queue.name}.parent"
            if above in seen:
                raise Invalid(
                    [Problem(path, f"is {queue.parent}, which is below {queue.name} itself")]
                )
            if above not in there:
                raise Invalid(
                    [Problem(path, f"is {above}, which does not exist; set that queue first")]
                )
            seen.add(above)
            above = there[above].parent
    return [queue for queue in queues if known.get(queue.name) != queue]


def stopped_by(queues: Mapping[str, Queue], name: str) -> str | None:
    """The queue that keeps jobs of this one from starting: itself, or one above it."""
    queue = queues.get(name)
    while queue is not None:
        if queue.stopped:
            return queue.name
        queue = queues.get(queue.parent) if queue.parent is not None else None
    return None


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
