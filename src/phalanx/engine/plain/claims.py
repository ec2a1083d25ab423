"""Claims of the plain protocol: a task reserved for the worker, else a job open to any runner.

A claim can be held open; each job that becomes claimable wakes one of them.
"""

import asyncio
import base64
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from phalanx.core.environment import GangEnvironment
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import Claimed, Gone, WorkerReturned
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Blob, Protocol, Task
from phalanx.core.node import Node
from phalanx.core.states import State
from phalanx.engine.engine import Engine
from phalanx.engine.plain.open_jobs import OpenJobs
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store

#: Larger checkpoints do not fit into an environment variable; they are downloaded.
INLINE_BYTES = 96 * 1024


class PlainClaim(NamedTuple):
    gang: Gang
    task: Task
    env: dict[str, str]


class _NeedsCheckpoint(NamedTuple):
    """The task to claim has a checkpoint, which must be read from the store first."""

    blob: Blob


class _NoSlot(NamedTuple):
    """The worker can run nothing but tasks reserved for it."""


async def _no_check() -> None:
    pass


class PlainClaims:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._open_jobs = OpenJobs(self._wake_one)
        #: Calls that are held open: all of them, and the one of each worker.
        self._held: deque[asyncio.Event] = deque()
        self._by_worker: dict[str, asyncio.Event] = {}

    def observe(self, turn: Turn) -> None:
        self._open_jobs.observe(turn)
        for worker in turn.woken() & self._by_worker.keys():
            self._by_worker[worker].set()

    async def next(
        self, worker: str | None, wait_s: float, check: Callable[[], Awaitable[object]] = _no_check
    ) -> PlainClaim | None:
        """Claim a task for this worker, or for a runner without one. The task is running then.

        Raises Unknown for a worker that is not registered, Conflict for an agent, and what `check`
        raises before a task is claimed: the rights of the caller may end while the call is held.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(wait_s, self._engine.settings.sync_wait_s)
        while True:
            wake = self._hold(worker)
            try:
                await check()
                claim = await self._claim(worker)
                if isinstance(claim, _NoSlot):
                    self._leave(wake)  # another call may take the job
                elif claim is not None:
                    return claim
                if loop.time() >= until:
                    return None
                async with asyncio.timeout_at(until):
                    await wake.wait()
            except TimeoutError:
                return None
            finally:
                self._release(worker, wake)

    def _hold(self, worker: str | None) -> asyncio.Event:
        wake = asyncio.Event()
        self._held.append(wake)
        if worker is not None:
            self._by_worker[worker] = wake
        return wake

    def _release(self, worker: str | None, wake: asyncio.Event) -> None:
        if worker is not None and self._by_worker.get(worker) is wake:
            del self._by_worker[worker]
        self._leave(wake)

    def _leave(self, wake: asyncio.Event) -> None:
        """Stop holding a call. If it was woken for a job and did not claim it, wake another."""
        if wake in self._held:
            self._held.remove(wake)
        elif self._open_jobs:
            self._wake_one()

    def _wake_one(self) -> None:
        if self._held:
            self._held.popleft().set()

    async def _claim(self, worker: str | None) -> PlainClaim | _NoSlot | None:
        checkpoints: dict[str, bytes] = {}
        while True:
            claim = await self._engine.do(lambda turn: self._take(turn, worker, checkpoints))
            if worker is not None:
                self._engine.hear_worker(worker)
            if not isinstance(claim, _NeedsCheckpoint):
                if isinstance(claim, PlainClaim):
                    self._engine.hear_runner((claim.task.id, claim.task.epoch))
                return claim
            checkpoints[claim.blob.id] = await self._store.get_blob(claim.blob.id) or b""

    def _take(
        self, turn: Turn, worker: str | None, checkpoints: dict[str, bytes]
    ) -> PlainClaim | _NeedsCheckpoint | _NoSlot | None:
        if worker is not None:
            node = _plain_node(turn, worker)
            _free_residues(turn, node)
            for gang, task in _reserved(turn, node):
                needed = _needed(task, checkpoints)
                if needed is not None:
                    return needed
                try:
                    turn.apply(Claimed(task.id, worker))
                except Conflict:
                    continue  # agents of the same gang have not accepted yet
                return _claim(turn, gang.job.id, task.index, checkpoints)
            if not _has_free_slot(node):
                return _NoSlot()
        first = self._open_jobs.first(turn)
        if first is None:
            return None
        task = first.tasks[0]
        needed = _needed(task, checkpoints)
        if needed is not None:
            return needed
        turn.apply(Claimed(task.id, worker))
        return _claim(turn, first.job.id, 0, checkpoints)


def _plain_node(turn: Turn, worker: str) -> Node:
    node = turn.cluster.nodes.get(worker)
    if node is None:
        raise Unknown(f"worker {worker[:80]} is not registered; register it first")
    if node.worker.protocol is not Protocol.PLAIN:
        raise Conflict(f"worker {worker} is an agent; it receives its tasks over sync")
    if node.worker.lost_at is not None:
        turn.apply(WorkerReturned(worker))
    return turn.cluster.nodes[worker]


def _free_residues(turn: Turn, node: Node) -> None:
    """A worker with one slot claims only when it runs nothing, so its residues have ended."""
    if node.worker.slots == 1:
        for attempt in node.charges.keys() & turn.cluster.residues.keys():
            turn.apply(Gone(node.worker.id, *attempt))


def _reserved(turn: Turn, node: Node) -> list[tuple[Gang, Task]]:
    """The tasks reserved for this worker, the oldest reservation first."""
    reserved = []
    for task_id, epoch in sorted(node.charges, key=lambda attempt: node.charges[attempt].at):
        job, index = split_task(task_id)
        gang = turn.cluster.gangs.get(job)
        if gang is None:
            continue
        task = gang.tasks[index]
        if task.epoch == epoch and task.state is State.RESERVED:
            reserved.append((gang, task))
    return reserved


def _has_free_slot(node: Node) -> bool:
    slots = node.worker.slots
    return node.is_open and (slots is None or len(node.charges) < slots)


def _needed(task: Task, checkpoints: dict[str, bytes]) -> _NeedsCheckpoint | None:
    blob = task.checkpoint
    if blob is None or blob.size_bytes > INLINE_BYTES or blob.id in checkpoints:
        return None
    return _NeedsCheckpoint(blob)


def _claim(turn: Turn, job: str, index: int, checkpoints: dict[str, bytes]) -> PlainClaim:
    gang = turn.cluster.gangs[job]
    task = gang.tasks[index]
    env = GangEnvironment(gang, turn.cluster.nodes).environment(task)
    if task.checkpoint is not None and task.checkpoint.id in checkpoints:
        env["CHECKPOINT_DATA"] = base64.b64encode(checkpoints[task.checkpoint.id]).decode()
    return PlainClaim(gang, task, env)
