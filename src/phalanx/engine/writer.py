"""One leader's time in office, from loading the rows to losing the lease or the trust in memory.

Commands wait in a queue. Each turn applies what has arrived, then what is due, commits once, and
then answers. Nothing that a turn produced is seen by anyone before its commit has succeeded.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from phalanx.core.changes import Timer
from phalanx.core.cluster import Cluster
from phalanx.core.errors import CoreError
from phalanx.core.events import Event, Vanished, WorkerLost
from phalanx.core.model import Protocol, Task
from phalanx.core.spec.job import Micros
from phalanx.core.states import State
from phalanx.engine.commits import Commits
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.host import HostEnvironment
from phalanx.engine.liveness import Liveness
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import UNWATCHED, Telemetry
from phalanx.engine.turn import Turn
from phalanx.store.protocol import StoreError

#: Clocks of different grain may disagree by less than this on whether something is due.
_TICK_S = 0.001
#: Runners that are no workers come and go as they like; many at once mean nothing.
_NO_BRAKE = 1 << 62
#: How often to look whether a lease that has run out is back.
_NO_LEASE_S = 0.25

T = TypeVar("T")
Work = Callable[[Turn], T]
#: Told of every turn once it is durable: streams, logs, metrics, whoever waits.
Observer = Callable[[Turn], None]


class _Command(NamedTuple):
    work: Work[Any]
    answer: asyncio.Future[Any]


class Writer:
    def __init__(
        self,
        cluster: Cluster,
        commits: Commits,
        settings: EngineSettings,
        host: HostEnvironment,
        *,
        watcher: Telemetry = UNWATCHED,
    ) -> None:
        self._cluster = cluster
        self._commits = commits
        self._settings = settings
        self._host = host
        self._watcher = watcher
        self._silence_s = commits.silence_s
        self.observers: list[Observer] = []
        self._loop = asyncio.get_running_loop()
        self._commands: deque[_Command] = deque()
        self._arrived = asyncio.Event()
        self._closed: Exception | None = None
        self._now = cluster.loaded_at
        self._timers: list[tuple[Micros, int, Event]] = []
        self._order = itertools.count()
        self._set_timers(cluster.timers())
        self.attendance = Liveness(settings, self._loop.time())
        for worker, node in cluster.nodes.items():
            if node.worker.lost_at is None:
                self.hear(worker)
        #: Tasks that are run over the plain protocol, each by its own heartbeats: a worker that
        #: goes on may have dropped one, or never have heard that it was given one.
        self.runners = Liveness(replace(settings, brake_count=_NO_BRAKE), self._loop.time())
        for gang in cluster.gangs.values():
            for task in gang.tasks:
                if task.state in (State.RUNNING, State.PREEMPTING) and _is_plain(cluster, task):
                    self.hear_runner(task.id, task.epoch)

    def hear(self, worker: str) -> None:
        if self.attendance.hear(worker, self._loop.time()):
            self._arrived.set()

    def hear_runner(self, task: str, epoch: int) -> None:
        if self.runners.hear(f"{task} {epoch}", self._loop.time()):
            self._arrived.set()

    def stalled(self, seconds: float) -> None:
        self.attendance.stalled(seconds)
        self.runners.stalled(seconds)

    async def do(self, work: Work[T]) -> T:
        """Run this in the next turn; its result, once what it changed is durable.

        What `work` raises is raised here, also only then.
        """
        if self._closed is not None:
            raise self._closed
        answer: asyncio.Future[T] = self._loop.create_future()
        self._commands.append(_Command(work, answer))
        self._arrived.set()
        return await answer

    async def run(self) -> None:
        """Take turns until the store refuses one. Raises what it said."""
        try:
            while True:
                await self._wait()
                await self._take_turn()
        except StoreError as error:
            self.close(Unavailable(str(error)))
            raise
        finally:
            self.close(NotLeading())

    def close(self, why: Exception) -> None:
        """Nobody who still waits will be answered otherwise."""
        if self._closed is None:
            self._closed = why
        for command in self._commands:
            if not command.answer.done():
                command.answer.set_exception(self._closed)
        self._commands.clear()

    async def finish(self) -> None:
        """Take no more commands, and return when those that were taken are answered."""
        last = self.do(lambda turn: None)
        task = asyncio.ensure_future(last)
        await asyncio.sleep(0)
        self._closed = NotLeading()
        await task

    async def _wait(self) -> None:
        """Until a command arrives or something is due."""
        if self._commands:
            return
        self._arrived.clear()
        delays = []
        if self._timers:
            delays.append((self._timers[0][0] - self.tell_time()) / 1_000_000)
        least = 0.0 if self._commits.holds_lease() else _NO_LEASE_S
        for deadline in (self.attendance.next_deadline(), self.runners.next_deadline()):
            if deadline is not None:
                delays.append(max(least, deadline - self._loop.time()))
        try:
            async with asyncio.timeout(max(_TICK_S, min(delays)) if delays else None):
                await self._arrived.wait()
        except TimeoutError:
            pass

    def tell_time(self) -> Micros:
        """The wall clock, but never backwards."""
        self._now = max(self._now, self._host.clock())
        return self._now

    async def _take_turn(self) -> None:
        turn = Turn(self._cluster, self.tell_time(), self._host.crons)
        answers = self._run_commands(turn)
        # What has arrived counts before what is due: a worker that was heard is not lost.
        self._fire_timers(turn)
        self._lose_workers(turn)
        self._set_timers(turn.take_timers())
        durable = turn.durable()
        began = self._loop.time()
        try:
            await self._commits.commit(durable)
        except StoreError as error:
            for answer in answers:
                answer(Unavailable(str(error)))
            raise
        except BaseException:
            for answer in answers:
                answer(NotLeading())
            raise
        took = self._loop.time() - began
        if took > self._settings.stall_s:
            self.stalled(took)
        if durable:
            self._watcher.committed(took, len(answers), len(durable))
        refusal = None if self._commits.holds_lease() else NotLeading()
        for answer in answers:
            answer(refusal)
        for observer in self.observers:
            observer(turn)

    def _run_commands(self, turn: Turn) -> list[Callable[[Exception | None], None]]:
        """Run what has arrived; the answers are kept back until the commit."""
        answers = []
        for _ in range(min(len(self._commands), self._settings.turn_limit)):
            command = self._commands.popleft()
            if command.answer.done():
                continue  # whoever asked has gone
            result, error = None, None
            try:
                result = command.work(turn)
            except Exception as raised:  # the asker's own; it is refused alone
                error = raised
            answers.append(_answer(command.answer, result, error))
        return answers

    def _fire_timers(self, turn: Turn) -> None:
        """Apply every timer that is due, also those that this turn has set."""
        self._set_timers(turn.take_timers())
        while self._timers and self._timers[0][0] <= turn.now:
            _, _, event = heapq.heappop(self._timers)
            turn.apply(event)
            self._set_timers(turn.take_timers())

    def _lose_workers(self, turn: Turn) -> None:
        # Without a lease nobody is answered, so nobody can be heard: that is no worker's fault.
        if not self._commits.holds_lease():
            return
        self.stalled(self._commits.silence_s - self._silence_s)
        self._silence_s = self._commits.silence_s
        was_braked = self.attendance.is_braked
        self._declare_lost(turn)
        if self.attendance.is_braked and not was_braked:
            self._watcher.braked()

    def _declare_lost(self, turn: Turn) -> None:
        for worker in self.attendance.take_lost(self._loop.time()):
            try:
                turn.apply(WorkerLost(worker))
            except CoreError:
                continue  # removed in the meantime
        for runner in self.runners.take_lost(self._loop.time()):
            name, _, epoch = runner.rpartition(" ")
            try:
                # Without a worker there is no telling where it would be alive.
                task = turn.cluster.task(name)
                turn.apply(Vanished(name, int(epoch), gone=task.worker is None))
            except CoreError:
                continue  # it had ended

    def _set_timers(self, timers: Iterable[Timer]) -> None:
        for timer in timers:
            heapq.heappush(self._timers, (timer.at, next(self._order), timer.event))


def _is_plain(cluster: Cluster, task: Task) -> bool:
    node = None if task.worker is None else cluster.nodes.get(task.worker)
    return node is None or node.worker.protocol is Protocol.PLAIN


def _answer(
    future: asyncio.Future[Any], result: Any, error: Exception | None
) -> Callable[[Exception | None], None]:
    def deliver(refusal: Exception | None) -> None:
        if future.done():
            return
        if refusal is not None or error is not None:
            future.set_exception(refusal or error or AssertionError())
        else:
            future.set_result(result)

    return deliver
