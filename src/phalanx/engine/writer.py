"""The single writer of one term: commands in, one commit per turn, answers out.

Commands queue up. Each turn applies the commands that have arrived, the timers that are due and the
losses that are detected, commits once, and then answers. Nothing that a turn produced is visible to
a caller or an observer before its commit has succeeded.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from phalanx.core.changes import Timer
from phalanx.core.cluster import Cluster
from phalanx.core.events import Event
from phalanx.core.time_units import Micros
from phalanx.engine.commits import Commits
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.host import HostEnvironment
from phalanx.engine.loss_detection import LossDetection
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import NO_TELEMETRY, Telemetry
from phalanx.engine.turn import Turn
from phalanx.store.protocol import StoreError

#: Two clocks may disagree by less than this on whether a timer is due.
_TICK_S = 0.001
#: How often an expired lease is checked for renewal.
_NO_LEASE_S = 0.25

T = TypeVar("T")
#: A command: it reads and changes the cluster of its turn, and returns the caller's answer.
Work = Callable[[Turn], T]
#: Called with every turn once it is durable: event streams, logs, metrics, held calls.
Observer = Callable[[Turn], None]
#: Answers a caller, with an error in place of the command's result if there is one.
_Deliver = Callable[[Exception | None], None]


class _Command(NamedTuple):
    work: Work[Any]
    answer: asyncio.Future[Any]


class _Timers:
    """Events to apply at a time; those of one time in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[Micros, int, Event]] = []
        self._order = itertools.count()

    def add(self, timers: Iterable[Timer]) -> None:
        for timer in timers:
            heapq.heappush(self._heap, (timer.at, next(self._order), timer.event))

    @property
    def next_at(self) -> Micros | None:
        return self._heap[0][0] if self._heap else None

    def apply_due(self, turn: Turn) -> None:
        """Apply every timer that is due, including those that this turn has set."""
        self.add(turn.take_timers())
        while self._heap and self._heap[0][0] <= turn.now:
            turn.apply(heapq.heappop(self._heap)[2])
            self.add(turn.take_timers())


class Writer:
    def __init__(
        self,
        cluster: Cluster,
        commits: Commits,
        settings: EngineSettings,
        host: HostEnvironment,
        *,
        telemetry: Telemetry = NO_TELEMETRY,
    ) -> None:
        self._cluster = cluster
        self._commits = commits
        self._settings = settings
        self._host = host
        self._telemetry = telemetry
        self._without_lease_s = commits.without_lease_s
        self.observers: list[Observer] = []
        self._loop = asyncio.get_running_loop()
        self._commands: deque[_Command] = deque()
        #: Set when a command has arrived, or when the next deadline may be earlier.
        self._arrived = asyncio.Event()
        self.losses = LossDetection(cluster, settings, on_new_deadline=self._arrived.set)
        self._closed: Exception | None = None
        self._now = cluster.loaded_at
        self._timers = _Timers()
        self._timers.add(cluster.timers())

    async def do(self, work: Work[T]) -> T:
        """Run a command in the next turn; its result, once what it changed is durable.

        An exception from `work` is raised here, after the commit as well.
        """
        if self._closed is not None:
            raise self._closed
        answer: asyncio.Future[T] = self._loop.create_future()
        self._commands.append(_Command(work, answer))
        self._arrived.set()
        return await answer

    async def run(self) -> None:
        """Take turns until a commit fails. Raises the store's error."""
        try:
            while True:
                await self._wait()
                await self._take_turn()
        except StoreError as error:
            self.close(Unavailable(str(error)))
            raise
        finally:
            self.close(NotLeading())

    def close(self, error: Exception) -> None:
        """Refuse further commands, and answer those that are queued with this error."""
        if self._closed is None:
            self._closed = error
        for command in self._commands:
            if not command.answer.done():
                command.answer.set_exception(self._closed)
        self._commands.clear()

    async def finish(self) -> None:
        """Refuse further commands, and return when those that are queued have been answered."""
        last = self.do(lambda turn: None)
        task = asyncio.ensure_future(last)
        await asyncio.sleep(0)
        self._closed = NotLeading()
        await task

    def now(self) -> Micros:
        """The wall clock's time, which never goes backwards here."""
        self._now = max(self._now, self._host.clock())
        return self._now

    async def _wait(self) -> None:
        """Return when a command arrives, a timer is due or a deadline has passed."""
        if self._commands:
            return
        self._arrived.clear()
        delays = []
        if self._timers.next_at is not None:
            delays.append((self._timers.next_at - self.now()) / 1_000_000)
        deadline = self.losses.next_deadline()
        if deadline is not None:
            least = 0.0 if self._commits.holds_lease() else _NO_LEASE_S
            delays.append(max(least, deadline - self._loop.time()))
        try:
            async with asyncio.timeout(max(_TICK_S, min(delays)) if delays else None):
                await self._arrived.wait()
        except TimeoutError:
            pass

    async def _take_turn(self) -> None:
        turn = Turn(self._cluster, self.now(), self._host.crons)
        answers = self._run_commands(turn)
        # Commands come before deadlines: a worker that has just been heard is not lost.
        self._timers.apply_due(turn)
        self._declare_losses(turn)
        self._timers.add(turn.take_timers())
        await self._commit(turn, answers)
        error = None if self._commits.holds_lease() else NotLeading()
        for deliver in answers:
            deliver(error)
        self.losses.observe(turn)
        for observer in self.observers:
            observer(turn)

    def _run_commands(self, turn: Turn) -> list[_Deliver]:
        """Run the commands that have arrived; their answers are delivered after the commit."""
        answers = []
        for _ in range(min(len(self._commands), self._settings.turn_limit)):
            command = self._commands.popleft()
            if command.answer.done():
                continue  # the caller was cancelled
            result, error = None, None
            try:
                result = command.work(turn)
            except Exception as raised:  # it concerns this command only
                error = raised
            answers.append(_delivery(command.answer, result, error))
        return answers

    def _declare_losses(self, turn: Turn) -> None:
        # Without a lease no call is answered, so no worker can be heard.
        if not self._commits.holds_lease():
            return
        self.losses.add_pause(self._commits.without_lease_s - self._without_lease_s)
        self._without_lease_s = self._commits.without_lease_s
        was_braked = self.losses.is_braked
        self.losses.declare(turn)
        if self.losses.is_braked and not was_braked:
            self._telemetry.braked()

    async def _commit(self, turn: Turn, answers: list[_Deliver]) -> None:
        changes = turn.durable()
        began_s = self._loop.time()
        try:
            await self._commits.commit(changes)
        except StoreError as error:
            for deliver in answers:
                deliver(Unavailable(str(error)))
            raise
        except BaseException:
            for deliver in answers:
                deliver(NotLeading())
            raise
        took_s = self._loop.time() - began_s
        if took_s > self._settings.stall_s:
            self.losses.add_pause(took_s)
        if changes:
            self._telemetry.committed(took_s, len(answers), len(changes))


def _delivery(future: asyncio.Future[Any], result: Any, error: Exception | None) -> _Deliver:
    def deliver(refusal: Exception | None) -> None:
        if future.done():
            return
        if refusal is not None or error is not None:
            future.set_exception(refusal or error or AssertionError())
        else:
            future.set_result(result)

    return deliver
