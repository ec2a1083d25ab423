"""Workers: registration, inventories, loss and return, cordons and drains."""

from collections.abc import Iterable

from msgspec.structs import replace

from phalanx.core import causes
from phalanx.core.causes import TaskEnding
from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import (
    CordonChanged,
    DrainDue,
    DrainRequested,
    Evicted,
    Gone,
    Inventoried,
    PollersCounted,
    WorkerLeaving,
    WorkerLost,
    WorkerRegistered,
    WorkerRemoved,
    WorkerReturned,
)
from phalanx.core.gang import Gang
from phalanx.core.handlers.fail import Failure, lose_processes
from phalanx.core.handlers.gather import lose_gathered
from phalanx.core.handlers.reserve import lose_reservation
from phalanx.core.handlers.stop import evicted
from phalanx.core.ids import split_task
from phalanx.core.model import Protocol, Task, Worker
from phalanx.core.node import AttemptKey, Node
from phalanx.core.records import (
    AttemptGone,
    WorkerCordoned,
    WorkerDeclaredLost,
    WorkerDeleted,
    WorkerDraining,
    WorkerJoined,
    WorkerRecovered,
    WorkerShuttingDown,
    WorkerUncordoned,
)
from phalanx.core.states import PLACED, Move, State

_VANISHED = Failure(TaskEnding.VANISHED, gone=True)


def worker_registered(tx: Changes, event: WorkerRegistered) -> None:
    """Register a worker. It replaces an earlier agent of the same name."""
    earlier = tx.find_node(event.worker)
    worker = Worker(
        id=event.worker,
        incarnation=event.incarnation,
        protocol=event.protocol,
        address=event.address,
        born_at=tx.now,
        registered_at=tx.now,
        resources=event.resources,
        labels=dict(event.labels),
        limits=event.limits,
        slots=event.slots,
    )
    if event.slots is None and event.protocol is Protocol.PLAIN:
        worker = replace(worker, slots=1, counts_polls=True)
    reborn = earlier is None or (
        (earlier.worker.incarnation, earlier.worker.protocol) != (event.incarnation, event.protocol)
    )
    if earlier is not None:
        worker = replace(
            worker,
            cordoned=earlier.worker.cordoned,
            drain_at=earlier.worker.drain_at,
            drained_by=earlier.worker.drained_by,
            suspicions=earlier.worker.suspicions,
        )
        if not reborn:
            worker = replace(worker, born_at=earlier.worker.born_at)
            if worker.counts_polls and earlier.worker.counts_polls:
                worker = replace(worker, slots=earlier.worker.slots)
    node = tx.set_worker(worker)
    if event.protocol is Protocol.PLAIN:
        # A plain worker reports no inventory. It registers when it starts, with no tasks yet.
        node.strays = frozenset()
        node.inventoried = True
        _free_residues(tx, node, node.charges)
    elif reborn:
        node.inventoried = False
    if reborn:
        for gang, tasks in _by_gang(tx, node, node.charges):
            _forget_acceptance(gang, tasks)
    if reborn and earlier is not None:
        tx.wake.add(worker.id)  # so that the agent that was replaced learns of it
    tx.record(WorkerJoined(worker.id, event.incarnation))


def _forget_acceptance(gang: Gang, tasks: Iterable[Task]) -> None:
    """Note that these tasks are not prepared, so that their agents must accept them again."""
    for task in tasks:
        if task.state is State.RESERVED and not task.released and gang.accepted >> task.index & 1:
            gang.accepted ^= 1 << task.index
            gang.missing += 1


def _free_residues(tx: Changes, node: Node, attempts: Iterable[AttemptKey]) -> None:
    for attempt in list(attempts):
        if attempt in tx.base.residues:
            tx.free_residue(node, attempt)


def inventoried(tx: Changes, event: Inventoried) -> None:
    node = tx.node(event.worker)
    worker = node.worker
    if worker.incarnation != event.incarnation:
        raise Conflict(
            f"worker {worker.id} was registered again; incarnation {event.incarnation} must stop"
        )
    if worker.lost_at is not None:
        worker = replace(worker, lost_at=None)
        node = tx.set_worker(worker)
        tx.record(WorkerRecovered(worker.id))
    reported = frozenset(event.tasks)
    was_open = node.is_open
    node.inventoried = True
    node.strays = reported.difference(node.charges)
    if node.is_open and not was_open:
        tx.replan = True
    missing = [attempt for attempt in node.charges if attempt not in reported]
    _free_residues(tx, node, missing)
    for gang, tasks in _by_gang(tx, node, missing):
        _forget_acceptance(gang, tasks)
        lost = [task for task in tasks if _should_be_there(task, worker)]
        lose_processes(tx, gang, lost, _VANISHED)
    if node.strays:
        tx.wake.add(worker.id)


def _should_be_there(task: Task, worker: Worker) -> bool:
    """Whether an agent that does not report the task has lost it.

    A task that was released but not reported as started may not have reached the agent yet, unless
    it was released to an earlier incarnation, which may have run it.
    """
    if task.state is State.RESERVED:
        return task.released_at is not None and task.released_at < worker.born_at
    return task.state in PLACED


def _by_gang(
    tx: Changes, node: Node, attempts: Iterable[AttemptKey]
) -> list[tuple[Gang, list[Task]]]:
    """The live tasks among these attempts, by gang."""
    grouped: dict[str, list[Task]] = {}
    for task_id, epoch in attempts:
        job, index = split_task(task_id)
        gang = tx.base.gangs.get(job)
        if gang is None:
            continue
        task = gang.tasks[index]
        if task.epoch == epoch and task.worker == node.worker.id and task.state in PLACED:
            grouped.setdefault(job, []).append(task)
    return [(tx.gang(job), tasks) for job, tasks in sorted(grouped.items())]


def worker_returned(tx: Changes, event: WorkerReturned) -> None:
    worker = tx.node(event.worker).worker
    if worker.lost_at is None:
        return
    if worker.protocol is not Protocol.PLAIN:
        raise Conflict(f"worker {worker.id} was lost; its agent must report its tasks first")
    tx.set_worker(replace(worker, lost_at=None))
    tx.record(WorkerRecovered(worker.id))


def pollers_counted(tx: Changes, event: PollersCounted) -> None:
    worker = tx.node(event.worker).worker
    if worker.counts_polls and event.pollers > (worker.slots or 0):
        tx.set_worker(replace(worker, slots=event.pollers))


def worker_lost(tx: Changes, event: WorkerLost) -> None:
    node = tx.find_node(event.worker)
    if node is None or node.worker.lost_at is not None:
        return
    node = tx.set_worker(replace(node.worker, lost_at=tx.now))
    node.inventoried = node.worker.protocol is Protocol.PLAIN
    tx.record(WorkerDeclaredLost(event.worker))
    _lose_tasks(tx, node)


def _lose_tasks(tx: Changes, node: Node) -> None:
    worker = node.worker.id
    lose_gathered(tx, node)
    failure = Failure(TaskEnding.WORKER_LOST, gone=False)
    for gang, tasks in _by_gang(tx, node, list(node.charges)):
        # The reservation may already have been given back with that of another job of its group.
        if any(task.worker == worker for task in gang.unreleased()):
            lose_reservation(tx, gang, Move.WORKER_LOST, causes.worker_lost(worker), worker)
        lose_processes(tx, gang, [t for t in tasks if gang.tasks[t.index] is t], failure)


def worker_removed(tx: Changes, event: WorkerRemoved) -> None:
    node = tx.node(event.worker)
    if node.worker.lost_at is None:
        node = tx.set_worker(replace(node.worker, lost_at=tx.now))
        _lose_tasks(tx, node)
    for attempt, residue in tx.residues.items():
        if residue is not None and residue.worker == event.worker:
            tx.residues[attempt] = None
    _free_residues(tx, node, node.charges)
    tx.workers[event.worker] = None
    tx.wake.add(event.worker)
    tx.replan = True
    tx.record(WorkerDeleted(event.worker, event.by))


def cordon_changed(tx: Changes, event: CordonChanged) -> None:
    worker = tx.node(event.worker).worker
    if worker.cordoned == event.reason:
        return
    # An operator who changes the cordon has looked at the worker, so old suspicions are dropped.
    node = tx.set_worker(replace(worker, cordoned=event.reason, drain_at=None, suspicions=()))
    if event.reason is None:
        tx.record(WorkerUncordoned(worker.id))
    else:
        lose_gathered(tx, node)
        tx.record(WorkerCordoned(worker.id, event.reason))


def drain_requested(tx: Changes, event: DrainRequested) -> None:
    cordon_changed(tx, CordonChanged(event.worker, event.why))
    worker = tx.node(event.worker).worker
    at = max(tx.now, event.deadline or tx.now)
    tx.set_worker(replace(worker, drain_at=at, drained_by=event.by))
    tx.record(WorkerDraining(worker.id, event.why, at, event.by))
    if at > tx.now:
        tx.timer(at, DrainDue(worker.id, at))
    else:
        drain_due(tx, DrainDue(worker.id, at))


def drain_due(tx: Changes, event: DrainDue) -> None:
    node = tx.find_node(event.worker)
    if node is None or node.worker.drain_at != event.at or event.at > tx.now:
        return
    _evict_all(tx, node, causes.worker_draining(event.worker, node.worker.cordoned or ""))


def worker_leaving(tx: Changes, event: WorkerLeaving) -> None:
    worker = tx.node(event.worker).worker
    if worker.leaving:
        return
    node = tx.set_worker(replace(worker, leaving=True))
    tx.record(WorkerShuttingDown(worker.id))
    _evict_all(tx, node, causes.worker_shutting_down(worker.id))


def _evict_all(tx: Changes, node: Node, why: str) -> None:
    """Evict every gang with a task on this worker."""
    for gang, _ in _by_gang(tx, node, node.charges):
        if not gang.job.is_ending:
            evicted(tx, Evicted(gang.job.id, by=node.worker.drained_by, why=why))


def gone(tx: Changes, event: Gone) -> None:
    """Note that no process of an attempt is left on its worker."""
    node = tx.node(event.worker)
    attempt = (event.task, event.epoch)
    if attempt in node.strays:
        node.strays = node.strays - {attempt}
        tx.replan = True
    elif attempt in tx.base.residues and attempt in node.charges:
        tx.free_residue(node, attempt)
        job, index = split_task(event.task)
        tx.record(AttemptGone(job, event.epoch, index, event.worker))
    elif attempt in node.charges:
        for gang, tasks in _by_gang(tx, node, [attempt]):
            lose_processes(tx, gang, tasks, _VANISHED)
    else:
        raise Unknown(f"worker {event.worker} has no task {event.task} of attempt {event.epoch}")
