"""The plain protocol's claims: what is reserved for a worker, else a job that asks for nothing.

Jobs that anybody may take are kept in order as they come, so that a claim costs the same however
many wait. Claims may be held; each job that turns up wakes one of them.
"""

import asyncio
import base64
import heapq
from collections import deque
from typing import NamedTuple

from phalanx.core.cluster import Cluster
from phalanx.core.environment import GangEnvironment
from phalanx.core.errors import Conflict, Unknown
from phalanx.core.events import Claimed, Gone, WorkerReturned
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Blob, Protocol, Task
from phalanx.core.node import Node
from phalanx.core.queues import stopped_by
from phalanx.core.spec.job import Micros
from phalanx.core.states import State
from phalanx.engine.engine import Engine
from phalanx.engine.turn import Turn
from phalanx.store.protocol import Store

#: Larger checkpoints do not fit into a variable; they are fetched.
INLINE_BYTES = 96 * 1024

#: Higher priority first, then older.
_Key = tuple[int, Micros, str]


class PlainClaim(NamedTuple):
    gang: Gang
    task: Task
    env: dict[str, str]


class _NeedsBytes(NamedTuple):
    """The task that would be claimed has a checkpoint, which is not in memory."""

    blob: Blob


class _NoRoom(NamedTuple):
    """The worker can take nothing but what is reserved for it."""


class PlainClaims:
    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._cluster: Cluster | None = None
        self._open: list[_Key] = []
        self._keys: dict[str, _Key] = {}
        #: Those that may not start yet, by when they may.
        self._later: list[tuple[Micros, str]] = []
        self._by_worker: dict[str, asyncio.Event] = {}
        self._held: deque[asyncio.Event] = deque()

    # What is there to be claimed

    def observe(self, turn: Turn) -> None:
        if any(changes.queues for changes in turn.changes):
            self._cluster = None  # a queue may have been stopped or started: begin again
        self._attend(turn.cluster)
        for changes in turn.changes:
            for job in changes.gangs:
                gang = turn.cluster.gangs.get(job)
                if gang is not None:
                    self._offer(turn.cluster, gang)
        self._offer_due(turn)
        for worker in turn.woken() & self._by_worker.keys():
            self._by_worker[worker].set()

    def _attend(self, cluster: Cluster) -> None:
        """A leader that has just loaded begins with another cluster."""
        if cluster is not self._cluster:
            self._cluster = cluster
            self._open, self._keys, self._later = [], {}, []
            for gang in cluster.gangs.values():
                self._offer(cluster, gang)

    def _offer(self, cluster: Cluster, gang: Gang) -> None:
        if not _is_claimable(cluster, gang):
            return
        job = gang.job
        key = (-job.priority, job.created_at, job.id)
        if self._keys.get(job.id) != key:
            self._keys[job.id] = key
            heapq.heappush(self._open, key)
            self._wake_one()

    def _offer_due(self, turn: Turn) -> None:
        while self._later and self._later[0][0] <= turn.now:
            gang = turn.cluster.gangs.get(heapq.heappop(self._later)[1])
            if gang is not None:
                self._offer(turn.cluster, gang)

    def _wake_one(self) -> None:
        if self._held:
            self._held.popleft().set()

    def _first(self, turn: Turn) -> Gang | None:
        """The first job that anybody may take now. It stays where it is."""
        self._attend(turn.cluster)
        self._offer_due(turn)
        while self._open:
            key = self._open[0]
            gang = turn.cluster.gangs.get(key[2])
            is_offered = self._keys.get(key[2]) == key
            if is_offered and gang is not None and _is_claimable(turn.cluster, gang):
                not_before = 0 if gang.job.pending is None else gang.job.pending.not_before
                if not_before <= turn.now:
                    return gang
                heapq.heappush(self._later, (not_before, key[2]))
            heapq.heappop(self._open)
            if self._keys.get(key[2]) == key:
                del self._keys[key[2]]
        return None

    # Claiming

    async def next(self, worker: str | None, wait_s: float) -> PlainClaim | None:
        """The next task for this worker, or for somebody without a name. It is running from now on.

        Raises Unknown for a worker that has to register, Conflict for an agent.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(wait_s, self._engine.settings.sync_wait_s)
        while True:
            news = self._listen(worker)
            try:
                claim = await self._claim(worker)
                if isinstance(claim, _NoRoom):
                    self._leave(news)  # to somebody who can take it
                elif claim is not None:
                    return claim
                if loop.time() >= until:
                    return None
                async with asyncio.timeout_at(until):
                    await news.wait()
            except TimeoutError:
                return None
            finally:
                self._stop_listening(worker, news)

    def _listen(self, worker: str | None) -> asyncio.Event:
        news = asyncio.Event()
        self._held.append(news)
        if worker is not None:
            self._by_worker[worker] = news
        return news

    def _stop_listening(self, worker: str | None, news: asyncio.Event) -> None:
        if worker is not None and self._by_worker.get(worker) is news:
            del self._by_worker[worker]
        self._leave(news)

    def _leave(self, news: asyncio.Event) -> None:
        """Whoever was woken for a job may not have taken it, and then another one shall."""
        if news in self._held:
            self._held.remove(news)
        elif self._open:
            self._wake_one()

    async def _claim(self, worker: str | None) -> PlainClaim | _NoRoom | None:
        data: dict[str, bytes] = {}
        while True:
            found = await self._engine.do(lambda turn: self._take(turn, worker, data))
            if worker is not None:
                self._engine.hear_worker(worker)
            if not isinstance(found, _NeedsBytes):
                if isinstance(found, PlainClaim):
                    self._engine.hear_runner((found.task.id, found.task.epoch))
                return found
            data[found.blob.id] = await self._store.get_blob(found.blob.id) or b""

    def _take(
        self, turn: Turn, worker: str | None, data: dict[str, bytes]
    ) -> PlainClaim | _NeedsBytes | _NoRoom | None:
        if worker is not None:
            node = _plain_node(turn, worker)
            _free_residues(turn, node)
            for gang, task in _reserved(turn, node):
                needed = _needed(task, data)
                if needed is not None:
                    return needed
                try:
                    turn.apply(Claimed(task.id, worker))
                except Conflict:
                    continue  # agents of the same gang have not accepted yet
                return _claim(turn, gang.job.id, task.index, data)
            if not _has_room(node):
                return _NoRoom()
        first = self._first(turn)
        if first is None:
            return None
        task = first.tasks[0]
        needed = _needed(task, data)
        if needed is not None:
            return needed
        turn.apply(Claimed(task.id, worker))
        return _claim(turn, first.job.id, 0, data)


def _is_claimable(cluster: Cluster, gang: Gang) -> bool:
    return (
        len(gang.tasks) == 1
        and gang.tasks[0].state is State.PENDING
        and not gang.job.on_hold
        and gang.job.spec.is_anonymous
        and stopped_by(cluster.queues, gang.job.spec.queue) is None
    )


def _plain_node(turn: Turn, worker: str) -> Node:
    node = turn.cluster.nodes.get(worker)
    if node is None:
        raise Unknown(f"worker {worker} is not registered; register it first")
    if node.worker.protocol is not Protocol.PLAIN:
        raise Conflict(f"worker {worker} is an agent; it is told over sync what to run")
    if node.worker.lost_at is not None:
        turn.apply(WorkerReturned(worker))
    return turn.cluster.nodes[worker]


def _free_residues(turn: Turn, node: Node) -> None:
    """A worker that does one thing at a time asks for work only when it does nothing."""
    if node.worker.slots == 1:
        for attempt in node.charges.keys() & turn.cluster.residues.keys():
            turn.apply(Gone(node.worker.id, *attempt))


def _reserved(turn: Turn, node: Node) -> list[tuple[Gang, Task]]:
    """What is promised to this worker, the oldest promise first."""
    found = []
    for task_id, epoch in sorted(node.charges, key=lambda attempt: node.charges[attempt].at):
        job, index = split_task(task_id)
        gang = turn.cluster.gangs.get(job)
        if gang is None:
            continue
        task = gang.tasks[index]
        if task.epoch == epoch and task.state is State.RESERVED:
            found.append((gang, task))
    return found


def _has_room(node: Node) -> bool:
    slots = node.worker.slots
    return node.is_open and (slots is None or len(node.charges) < slots)


def _needed(task: Task, data: dict[str, bytes]) -> _NeedsBytes | None:
    blob = task.checkpoint
    if blob is None or blob.size_bytes > INLINE_BYTES or blob.id in data:
        return None
    return _NeedsBytes(blob)


def _claim(turn: Turn, job: str, index: int, data: dict[str, bytes]) -> PlainClaim:
    gang = turn.cluster.gangs[job]
    task = gang.tasks[index]
    env = GangEnvironment(gang, turn.cluster.nodes).environment(task)
    if task.checkpoint is not None and task.checkpoint.id in data:
        env["CHECKPOINT_DATA"] = base64.b64encode(data[task.checkpoint.id]).decode()
    return PlainClaim(gang, task, env)
