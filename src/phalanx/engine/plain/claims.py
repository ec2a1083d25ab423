"""Claims of the plain protocol: a task reserved for the worker, else a job open to any runner.

A claim can be held open; each job that becomes claimable wakes one of them. A worker that has
registered no slots has as many as it claims for at the same time: its tasks, and its open calls.
"""

import asyncio
import base64
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from phalanx.core.environment import GangEnvironment
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import Claimed, Gone, PollersCounted, WorkerReturned
from phalanx.core.gang import Gang
from phalanx.core.ids import claim_id, split_task
from phalanx.core.model import Blob, Protocol, Task
from phalanx.core.node import Node
from phalanx.core.states import PLACED, State
from phalanx.engine.engine import Engine
from phalanx.engine.plain.open_jobs import OpenJobs
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store

#: Larger checkpoints are downloaded: in base64 and with its name, an environment variable has at
#: most 128 KiB on Linux.
INLINE_BYTES = 96 * 1024 - 16


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


class _OpenCall:
    """A call that is held open until a task is claimed for it."""

    def __init__(self, worker: str | None) -> None:
        self.worker = worker
        self.is_registered = False
        self.wake = asyncio.Event()
        #: Checkpoints that were read for it, by the id of their blob.
        self.checkpoints: dict[str, bytes] = {}


class PlainClaims:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._open_jobs = OpenJobs(self._wake_one)
        #: Calls that are held open: all of them, and those of each worker.
        self._held: deque[_OpenCall] = deque()
        self._by_worker: dict[str, set[_OpenCall]] = {}

    def observe(self, turn: Turn) -> None:
        self._open_jobs.observe(turn)
        for worker in turn.woken() & self._by_worker.keys():
            for call in self._by_worker[worker]:
                call.wake.set()

    async def next(
        self,
        worker: str | None,
        wait_s: float,
        check: Callable[[], Awaitable[object]] = _no_check,
        *,
        must_be_registered: bool = True,
    ) -> PlainClaim | None:
        """Claim a task for this worker, or for a runner without one. The task is running then.

        Raises Unknown for a worker that must be registered and is not, Conflict for an agent, and
        what `check` raises before a task is claimed: the rights of the caller may end while the
        call is held.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(wait_s, self._engine.settings.sync_wait_s)
        while True:
            call = self._hold(worker)
            try:
                await check()
                claim = await self._claim(call, must_be_registered=must_be_registered)
                if isinstance(claim, _NoSlot):
                    self._leave(call)  # another call may take the job
                elif claim is not None:
                    return claim
                if loop.time() >= until:
                    return None
                async with asyncio.timeout_at(until):
                    await call.wake.wait()
            except TimeoutError:
                return None
            finally:
                self._answer(call)
                self._leave(call)

    def _hold(self, worker: str | None) -> _OpenCall:
        call = _OpenCall(worker)
        self._held.append(call)
        if worker is not None:
            self._by_worker.setdefault(worker, set()).add(call)
        return call

    def _answer(self, call: _OpenCall) -> None:
        """Stop counting a call among those of its worker."""
        calls = self._by_worker.get(call.worker or "", set())
        calls.discard(call)
        if call.worker is not None and not calls:
            self._by_worker.pop(call.worker, None)

    def _leave(self, call: _OpenCall) -> None:
        """Stop holding a call. If it was woken for a job and did not claim it, wake another."""
        if call in self._held:
            self._held.remove(call)
        elif self._open_jobs:
            self._wake_one()

    def _wake_one(self) -> None:
        if self._held:
            self._held.popleft().wake.set()

    async def _claim(
        self, call: _OpenCall, *, must_be_registered: bool
    ) -> PlainClaim | _NoSlot | None:
        def work(turn: Turn) -> PlainClaim | _NeedsCheckpoint | _NoSlot | None:
            call.is_registered = call.worker in turn.cluster.nodes
            if call.worker is None or not (call.is_registered or must_be_registered):
                return self._take_open_job(turn, call, None)
            return self._take(turn, call, call.worker)

        while True:
            claim = await self._engine.do(work)
            if call.worker is not None and call.is_registered:
                self._engine.hear_worker(call.worker)
            if not isinstance(claim, _NeedsCheckpoint):
                if isinstance(claim, PlainClaim):
                    self._engine.hear_runner((claim.task.id, claim.task.epoch))
                return claim
            call.checkpoints[claim.blob.id] = await self._store.get_blob(claim.blob.id) or b""

    def _take(
        self, turn: Turn, call: _OpenCall, worker: str
    ) -> PlainClaim | _NeedsCheckpoint | _NoSlot | None:
        node = self._counted(turn, _plain_node(turn, worker))
        _free_residues(turn, node)
        for gang, task in _reserved(turn, node):
            needed = _needed(task, call.checkpoints)
            if needed is not None:
                return needed
            try:
                turn.apply(Claimed(task.id, worker))
            except Conflict:
                continue  # agents of the same gang have not accepted yet
            return self._claimed(turn, call, gang.job.id, task.index)
        if not _has_free_slot(turn.cluster.nodes[worker]):
            return _NoSlot()
        return self._take_open_job(turn, call, worker)

    def _take_open_job(
        self, turn: Turn, call: _OpenCall, worker: str | None
    ) -> PlainClaim | _NeedsCheckpoint | None:
        first = self._open_jobs.first(turn)
        if first is None:
            return None
        needed = _needed(first.tasks[0], call.checkpoints)
        if needed is not None:
            return needed
        turn.apply(Claimed(first.tasks[0].id, worker))
        return self._claimed(turn, call, first.job.id, 0)

    def _claimed(self, turn: Turn, call: _OpenCall, job: str, index: int) -> PlainClaim:
        self._answer(call)  # from now on its task counts instead
        gang = turn.cluster.gangs[job]
        task = gang.tasks[index]
        env = GangEnvironment(gang, turn.cluster.nodes).environment(task)
        if task.checkpoint is not None:
            claim = claim_id(task.id, task.epoch)
            env["CHECKPOINT_URL"] = f"{self._engine.url}/jobs/{claim}/checkpoint"
            data = call.checkpoints.get(task.checkpoint.id)
            if data is not None:
                env["CHECKPOINT_DATA"] = base64.b64encode(data).decode()
        return PlainClaim(gang, task, env)

    def _counted(self, turn: Turn, node: Node) -> Node:
        """The node, with as many slots as its worker is seen to claim for at the same time."""
        worker = node.worker
        if worker.counts_polls:
            pollers = len(_running(turn, node)) + len(self._by_worker.get(worker.id, ()))
            if pollers > (worker.slots or 0):
                turn.apply(PollersCounted(worker.id, pollers))
        return turn.cluster.nodes[worker.id]


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
    """A worker that registered one slot claims only when it runs nothing: its residues have ended.

    With several pollers, an idle one says nothing of what another still runs.
    """
    if node.worker.slots == 1 and not node.worker.counts_polls:
        for attempt in list(node.residues):
            turn.apply(Gone(node.worker.id, *attempt))


def _reserved(turn: Turn, node: Node) -> list[tuple[Gang, Task]]:
    """The tasks reserved for this worker, the oldest reservation first."""
    return [(gang, task) for gang, task in _tasks(turn, node) if task.state is State.RESERVED]


def _running(turn: Turn, node: Node) -> list[Task]:
    """The tasks that this worker has claimed and not ended."""
    return [task for _, task in _tasks(turn, node) if task.state is not State.RESERVED]


def _tasks(turn: Turn, node: Node) -> list[tuple[Gang, Task]]:
    """The tasks placed on this worker, the oldest first."""
    placed = []
    for task_id, epoch in sorted(node.charges, key=lambda attempt: node.charges[attempt].at):
        job, index = split_task(task_id)
        gang = turn.cluster.gangs.get(job)
        if gang is None:
            continue
        task = gang.tasks[index]
        if task.epoch == epoch and task.state in PLACED:
            placed.append((gang, task))
    return placed


def _has_free_slot(node: Node) -> bool:
    slots = node.worker.slots
    return node.is_open and (slots is None or len(node.charges) < slots)


def _needed(task: Task, checkpoints: dict[str, bytes]) -> _NeedsCheckpoint | None:
    blob = task.checkpoint
    if blob is None or blob.size_bytes > INLINE_BYTES or blob.id in checkpoints:
        return None
    return _NeedsCheckpoint(blob)
