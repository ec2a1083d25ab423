"""The changes that follow from one event, built on copies of gangs and nodes.

The cluster takes them over only if every step was legal. The rows in it are to be committed; the
rest is for the engine: which workers to wake and which timers to set. Only this module makes new
versions of rows.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from phalanx.core.array import BLOCK, MOST_ATTEMPTS, Array
from phalanx.core.errors import Conflict, IllegalTransition, StaleEpoch, Unknown
from phalanx.core.events import Event
from phalanx.core.gang import ONE, Gang, counted
from phalanx.core.ids import split_task
from phalanx.core.ledger import Account
from phalanx.core.model import (
    AttemptState,
    Cron,
    ElementBlock,
    Job,
    PendingState,
    Phase,
    Queue,
    Residue,
    Task,
    Worker,
)
from phalanx.core.node import AttemptKey, Node, residue_of
from phalanx.core.records import Record
from phalanx.core.states import TARGETS, Move, State
from phalanx.core.time_units import Micros

if TYPE_CHECKING:
    from phalanx.core.cluster import Cluster


_PENDING = PendingState()
_ATTEMPT = AttemptState()

K = TypeVar("K")
V = TypeVar("V")


def merge(rows: dict[K, V], changed: Mapping[K, V | None]) -> None:
    """Update rows with the changed ones; None removes a row."""
    for key, row in changed.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row


class Timer(msgspec.Struct, frozen=True, gc=False):
    """An event to apply at a time. Timers are never cancelled: a late one changes nothing."""

    at: Micros
    event: Event


class Changes:
    __slots__ = (
        "accounts",
        "added",
        "base",
        "crons",
        "dropped_blobs",
        "elements",
        "forgotten",
        "gangs",
        "jobs",
        "nodes",
        "now",
        "queues",
        "records",
        "replan",
        "residues",
        "respecified",
        "seq",
        "tasks",
        "timers",
        "verdicts",
        "wake",
        "workers",
    )

    def __init__(self, base: "Cluster", now: Micros) -> None:
        self.base = base
        self.now = now
        self.seq = base.last_seq
        # Working copies.
        self.gangs: dict[str, Gang] = {}
        self.nodes: dict[str, Node] = {}
        # Rows to write; None removes one.
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[tuple[str, int], Task] = {}
        self.workers: dict[str, Worker | None] = {}
        self.queues: dict[str, Queue | None] = {}
        self.residues: dict[AttemptKey, Residue | None] = {}
        self.accounts: dict[str, Account] = {}
        self.crons: dict[str, Cron | None] = {}
        self.elements: dict[tuple[str, int], ElementBlock] = {}
        self.records: list[Record] = []
        self.dropped_blobs: list[str] = []
        self.forgotten: list[str] = []  #: finished jobs that the store may delete
        # Consequences.
        self.added: list[str] = []  #: new jobs
        self.respecified: list[str] = []  #: jobs whose specification has changed
        self.verdicts: list[tuple[str, Phase]] = []  #: jobs that got their verdict
        self.timers: list[Timer] = []
        self.wake: set[str] = set()  #: workers that have new instructions
        self.replan = False  #: whether a new plan may differ

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to commit, and not only changes in memory."""
        return bool(
            self.jobs
            or self.tasks
            or self.workers
            or self.queues
            or self.residues
            or self.accounts
            or self.crons
            or self.elements
            or self.records
            or self.dropped_blobs
        )

    # Reading

    def find_gang(self, job: str) -> Gang | None:
        gang = self.gangs.get(job)
        if gang is None:
            base = self.base.gangs.get(job)
            if base is None:
                return None
            gang = self.gangs[job] = base.copy()
        return gang

    def gang(self, job: str) -> Gang:
        gang = self.find_gang(job)
        if gang is None:
            raise Unknown(f"job {job} is not among the unfinished jobs")
        return gang

    def array(self, job: str) -> Array:
        """An unfinished array. Raises Unknown, and Conflict for a job that is no array."""
        gang = self.gang(job)
        if not isinstance(gang, Array):
            raise Conflict(f"job {job} is not an array; it has no elements")
        return gang

    def attempt(self, task: str, epoch: int) -> tuple[Gang, Task]:
        """The task that a message is about. Raises StaleEpoch if it is about an earlier attempt."""
        gang, row = self.task(task)
        if row.epoch != epoch:
            raise StaleEpoch(
                f"task {task} is in attempt {row.epoch}; the message is about attempt {epoch}"
            )
        return gang, row

    def task(self, task: str) -> tuple[Gang, Task]:
        job, index = split_task(task)
        gang = self.gang(job)
        if index >= len(gang.tasks):
            raise Unknown(f"there is no task {task}; job {job} has {len(gang.tasks)} tasks")
        return gang, gang.tasks[index]

    def find_node(self, worker: str | None) -> Node | None:
        if worker is None:
            return None
        node = self.nodes.get(worker)
        if node is None and (base := self.base.nodes.get(worker)) is not None:
            node = self.nodes[worker] = base.copy()
        return node

    def node(self, worker: str) -> Node:
        node = self.find_node(worker)
        if node is None:
            raise Unknown(f"worker {worker} is not registered")
        return node

    # Writing

    def move(self, gang: Gang, task: Task, move: Move, target: State, **fields: Any) -> Task:
        """Move a task to another state. Raises IllegalTransition if the table forbids it."""
        place = task.place
        released = place is not None and place.released_at is not None
        allowed = TARGETS.get((task.state, released, move))
        if allowed is None or target not in allowed:
            raise IllegalTransition(
                f"{move} cannot take a task from {task.state} to {target}: {task.story}"
            )
        moved = replace(task, state=target, **fields)
        gang.counts += ONE[target] - ONE[task.state]
        self._put(gang, moved)
        return moved

    def requeue(self, gang: Gang, task: Task, move: Move, **fields: Any) -> Task:
        """Move a task back to pending, without a place."""
        return self.move(gang, task, move, gang.pending_state, place=None, saved=None, **fields)

    def update(self, gang: Gang, task: Task, **fields: Any) -> Task:
        """Change fields of a task, but not its state."""
        updated = replace(task, **fields)
        self._put(gang, updated)
        return updated

    def _put(self, gang: Gang, task: Task) -> None:
        gang.tasks[task.index] = task
        self.tasks[(task.job, task.index)] = task

    def set_job(self, gang: Gang, **fields: Any) -> None:
        job = gang.job
        gang.job = self.jobs[job.id] = replace(job, version=job.version + 1, **fields)

    def set_pending(self, gang: Gang, **fields: Any) -> None:
        """Change the state of the pending stage. Begins the stage if need be."""
        self.set_job(gang, pending=replace(gang.job.pending or _PENDING, **fields))

    def set_attempt(self, gang: Gang, **fields: Any) -> None:
        """Change the state of the present attempt. Begins the stage if need be."""
        self.set_job(gang, attempt=replace(gang.job.attempt or _ATTEMPT, **fields))

    def add_gang(self, job: Job, tasks: list[Task]) -> Gang:
        gang = self.gangs[job.id] = Gang(job, tasks)
        self.jobs[job.id] = job
        for task in tasks:
            self.tasks[(job.id, task.index)] = task
        self.added.append(job.id)
        return gang

    def add_array(self, array: Array) -> None:
        """Add an array, new or from the store, with the states of its elements."""
        job = array.job
        self.gangs[job.id] = array
        self.jobs[job.id] = job
        for block in array.blocks:
            self.elements[(job.id, block.number)] = block
        self.added.append(job.id)

    def set_element(self, array: Array, position: int, state: str, attempts: int) -> None:
        number, offset = divmod(position, BLOCK)
        block = array.blocks[number]
        before = block.attempts
        counted = bytes((min(attempts, MOST_ATTEMPTS),))
        self.set_elements(
            array,
            number,
            block.states[:offset] + state + block.states[offset + 1 :],
            before
            if before[offset] == counted[0]
            else before[:offset] + counted + before[offset + 1 :],
        )
        if attempts > MOST_ATTEMPTS and attempts > array.job.epoch:
            self.set_job(array, epoch=attempts)

    def set_elements(
        self, array: Array, number: int, states: str, attempts: bytes | None = None
    ) -> None:
        """Set the states of the elements of one block."""
        before = array.blocks[number]
        block = ElementBlock(
            array.job.id, number, states, before.attempts if attempts is None else attempts
        )
        array.set_block(block)
        self.elements[(array.job.id, number)] = block

    def set_tasks(self, gang: Gang, tasks: list[Task]) -> None:
        """Replace the tasks of a gang that was never placed. There are not fewer of them."""
        before = gang.tasks
        gang.tasks = tasks
        gang.counts = counted(tasks)
        for index, task in enumerate(tasks):
            if index >= len(before) or before[index] != task:
                self.tasks[(gang.job.id, index)] = task
        self.respecified.append(gang.job.id)

    def add_tasks(self, gang: Gang, tasks: list[Task]) -> None:
        """Add tasks behind those that the gang has."""
        gang.tasks += tasks
        gang.counts += counted(tasks) if tasks else 0
        for task in tasks:
            self.tasks[(task.job, task.index)] = task
        self.respecified.append(gang.job.id)

    def set_worker(self, worker: Worker) -> Node:
        """Store a new version of a worker's row. The charges stay."""
        node = self.find_node(worker.id)
        if node is None:
            node = self.nodes[worker.id] = Node(worker)
        else:
            node.replace_worker(replace(worker, generation=node.worker.generation + 1))
        self.workers[worker.id] = node.worker
        self.replan = True
        return node

    def free(self, task: Task) -> None:
        """Discharge the worker of a task whose process is gone."""
        node = self.find_node(task.worker)
        if node is not None and node.discharge((task.id, task.epoch)):
            self.replan = True

    def keep_charged(self, task: Task) -> None:
        """Leave a residue: the task has ended, but its process may live on its worker."""
        node = self.find_node(task.worker)
        if node is None:
            return
        attempt = (task.id, task.epoch)
        charge = node.charges.get(attempt)
        if charge is not None:
            self.residues[attempt] = residue_of(task, charge, node.worker.id, self.now)
            node.residues.add(attempt)
            self.wake_worker_of(task)

    def free_residue(self, node: Node, attempt: AttemptKey) -> None:
        node.discharge(attempt)
        self.residues[attempt] = None
        self.replan = True

    def record(self, record: Record) -> None:
        """Write a record down under the next number."""
        self.seq += 1
        self.records.append(replace(record, seq=self.seq, at=self.now))

    def wake_worker_of(self, task: Task) -> None:
        worker = task.worker
        if worker is not None:
            self.wake.add(worker)

    def timer(self, at: Micros, event: Event) -> None:
        self.timers.append(Timer(at, event))
