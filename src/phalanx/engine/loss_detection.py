"""Which workers and plain runners are lost: a call renews a deadline, a missed one is a loss."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from phalanx.core.cluster import Cluster
from phalanx.core.errors import CoreError
from phalanx.core.events import Gone, Vanished, WorkerLost
from phalanx.core.model import Protocol, Task
from phalanx.core.node import AttemptKey, Node
from phalanx.core.states import State
from phalanx.engine.liveness import Liveness
from phalanx.engine.settings import EngineSettings
from phalanx.engine.turn import Turn

#: Runners without a worker come and go independently; many losses at once mean nothing.
_NO_BRAKE = 1 << 62


class LossDetection:
    """`on_new_deadline` is called when the next deadline may be earlier than before."""

    def __init__(
        self,
        cluster: Cluster,
        settings: EngineSettings,
        on_new_deadline: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_new_deadline = on_new_deadline
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._workers = Liveness(settings, now_s)
        #: Tasks run over the plain protocol, each with a deadline of its own: a worker that
        #: reports may have dropped one of its tasks, or never have received it.
        self._runners = Liveness(replace(settings, brake_count=_NO_BRAKE), now_s)
        for worker, node in cluster.nodes.items():
            if node.worker.lost_at is None:
                self.hear_worker(worker)
        for gang in cluster.gangs.values():
            for task in gang.tasks:
                if task.state in (State.RUNNING, State.PREEMPTING) and _is_plain(cluster, task):
                    self.hear_runner((task.id, task.epoch))
        for node in cluster.nodes.values():
            self._await_ends(node, node.residues)

    @property
    def is_braked(self) -> bool:
        return self._workers.is_braked

    def hear_worker(self, worker: str) -> None:
        """Renew a worker's deadline."""
        if self._workers.hear(worker, self._loop.time()):
            self._on_new_deadline()

    def hear_runner(self, attempt: AttemptKey) -> None:
        """Renew the deadline of an attempt run over the plain protocol."""
        if self._runners.hear(_runner(attempt), self._loop.time()):
            self._on_new_deadline()

    def add_pause(self, seconds: float) -> None:
        """Extend every deadline by a time in which the server did not listen."""
        self._workers.add_pause(seconds)
        self._runners.add_pause(seconds)

    def release_brake(self) -> None:
        self._workers.release_brake()

    def next_deadline(self) -> float | None:
        """When `declare` has something to do, on the loop's clock."""
        both = (self._workers.next_deadline(), self._runners.next_deadline())
        return min((each for each in both if each is not None), default=None)

    def declare(self, turn: Turn) -> None:
        """Apply the loss of every worker and runner whose deadline has passed."""
        for worker in self._workers.take_lost(self._loop.time(), partial(_is_expected, turn)):
            with suppress(CoreError):  # removed meanwhile
                turn.apply(WorkerLost(worker))
        for runner in self._runners.take_lost(self._loop.time()):
            with suppress(CoreError):  # ended meanwhile
                _declare_silent(turn, _attempt(runner))

    def observe(self, turn: Turn) -> None:
        """Drop the deadlines of removed workers, and set those of processes that may be left."""
        nodes = turn.cluster.nodes
        for changes in turn.changes:
            for worker, row in changes.workers.items():
                if worker in nodes:
                    self._await_ends(nodes[worker], nodes[worker].residues)
                elif row is None:
                    self._workers.forget(worker)
            for attempt, residue in changes.residues.items():
                if residue is not None and residue.worker in nodes:
                    self._await_ends(nodes[residue.worker], [attempt])

    def _await_ends(self, node: Node, attempts: Iterable[AttemptKey]) -> None:
        """Set a deadline for the processes that may be left on a plain worker.

        If nothing is heard of them until then, while their worker reports, they have ended.
        """
        if node.worker.protocol is Protocol.PLAIN and node.worker.lost_at is None:
            for attempt in attempts:
                self.hear_runner(attempt)


def _declare_silent(turn: Turn, attempt: AttemptKey) -> None:
    """Apply that nothing was heard of an attempt for too long."""
    residue = turn.cluster.residues.get(attempt)
    if residue is None:
        # A process without a worker cannot be found again, so it counts as gone.
        gone = turn.cluster.task(attempt[0]).worker is None
        turn.apply(Vanished(*attempt, gone=gone))
    else:
        node = turn.cluster.nodes.get(residue.worker)
        if node is None or node.worker.lost_at is None:
            turn.apply(Gone(residue.worker, *attempt))


def _is_expected(turn: Turn, worker: str) -> bool:
    """Whether the worker should report: it was not removed, is not leaving and not drained."""
    node = turn.cluster.nodes.get(worker)
    if node is None or node.worker.leaving:
        return False
    drain_at = node.worker.drain_at
    return drain_at is None or drain_at > turn.now


def _is_plain(cluster: Cluster, task: Task) -> bool:
    node = None if task.worker is None else cluster.nodes.get(task.worker)
    return node is None or node.worker.protocol is Protocol.PLAIN


def _runner(attempt: AttemptKey) -> str:
    return f"{attempt[0]} {attempt[1]}"


def _attempt(runner: str) -> AttemptKey:
    task, _, epoch = runner.rpartition(" ")
    return task, int(epoch)
