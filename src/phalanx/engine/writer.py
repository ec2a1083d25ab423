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
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from phalanx.core.changes import Changes, Timer
from phalanx.core.cluster import Cluster
from phalanx.core.errors import CoreError
from phalanx.core.events import Event
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.commits import Commits
from phalanx.engine.errors import NotLeading, Unavailable, UncertainOutcome
from phalanx.engine.host import HostEnvironment
from phalanx.engine.leader_lease import LeaderLease
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


class _Command(NamedTuple):
    work: Work[Any]
    answer: asyncio.Future[Any]


class _Answer(NamedTuple):
    """The answer to a command, delivered once the turn is durable."""

    future: asyncio.Future[Any]
    result: Any
    error: Exception | None
    changes: list[Changes]  #: those of the command, which the turn commits

    @property
    def has_rows(self) -> bool:
        return any(changes.has_rows for changes in self.changes)

    def deliver(self) -> None:
        if self.error is not None:
            self.refuse(self.error)
        elif not self.future.done():
            self.future.set_result(self.result)

    def refuse(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


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

    def apply_due(self, turn: Turn, on_refused: Callable[[str, str], None]) -> None:
        """Apply every timer that is due, including those that this turn has set.

        A timer that is refused concerns one job. It must not crash this leader, and then the next
        one, which would load the same timer.
        """
        self.add(turn.take_timers())
        while self._heap and self._heap[0][0] <= turn.now:
            event = heapq.heappop(self._heap)[2]
            try:
                turn.apply(event)
            except CoreError as error:
                on_refused(repr(event), str(error))
            self.add(turn.take_timers())


class Writer:
    def __init__(  # noqa: PLR0913
        self,
        cluster: Cluster,
        commits: Commits,
        lease: LeaderLease,
        settings: EngineSettings,
        host: HostEnvironment,
        *,
        telemetry: Telemetry = NO_TELEMETRY,
    ) -> None:
        self._cluster = cluster
        self._commits = commits
        self._lease = lease
        self._settings = settings
        self._host = host
        self._telemetry = telemetry
        self._without_lease_s = lease.without_lease_s
        self.observers: list[Observer] = []
        self._loop = asyncio.get_running_loop()
        self._commands: deque[_Command] = deque()
        #: Set when a command has arrived, or when the next deadline may be earlier.
        self._arrived = asyncio.Event()
        self.losses = LossDetection(cluster, settings, on_new_deadline=self._arrived.set)
        self._closed: Exception | None = None
        self._taking_turn = asyncio.Lock()
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
                async with self._taking_turn:
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

    async def settle(self, timeout_s: float) -> None:
        """Return when the turn under way has been answered, or after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._taking_turn:
                pass

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
            delays.append((self._timers.next_at - self.now()) / SECOND)
        deadline = self.losses.next_deadline()
        if deadline is not None:
            least = 0.0 if self._lease.is_valid() else _NO_LEASE_S
            delays.append(max(least, deadline - self._loop.time()))
        if not delays:
            await self._arrived.wait()
            return
        # Cheaper than a timeout around the wait, which would cancel and restart it.
        timer = self._loop.call_later(max(_TICK_S, min(delays)), self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            timer.cancel()

    async def _take_turn(self) -> None:
        turn = Turn(self._cluster, self.now(), self._host.crons)
        answers = self._run_commands(turn)
        # Commands come before deadlines: a worker that has just been heard is not lost.
        self._timers.apply_due(turn, self._telemetry.timer_refused)
        self._declare_losses(turn)
        self._timers.add(turn.take_timers())
        is_committed = await self._commit(turn, answers)
        # A commit under this term proves that there was no later one, so its answers are true
        # without a lease as well. Without a commit only the lease proves it.
        for answer in answers:
            if is_committed or self._lease.is_valid():
                answer.deliver()
            else:
                answer.refuse(NotLeading())
        self.losses.observe(turn)
        for observer in self.observers:
            observer(turn)

    def _run_commands(self, turn: Turn) -> list[_Answer]:
        """Run the commands that have arrived; their answers are delivered after the commit."""
        answers = []
        for _ in range(min(len(self._commands), self._settings.turn_limit)):
            command = self._commands.popleft()
            if command.answer.done():
                continue  # the caller was cancelled
            result, error, before = None, None, len(turn.changes)
            try:
                result = command.work(turn)
            except Exception as raised:  # it concerns this command only
                error = raised
            answers.append(_Answer(command.answer, result, error, turn.changes[before:]))
        return answers

    def _declare_losses(self, turn: Turn) -> None:
        # Without a lease no call is answered, so no worker can be heard.
        if not self._lease.is_valid():
            return
        self.losses.add_pause(self._lease.without_lease_s - self._without_lease_s)
        self._without_lease_s = self._lease.without_lease_s
        was_braked = self.losses.is_braked
        self.losses.declare(turn)
        if self.losses.is_braked and not was_braked:
            self._telemetry.braked()

    async def _commit(self, turn: Turn, answers: list[_Answer]) -> bool:
        """Commit the turn; whether there was anything to commit."""
        changes = turn.durable()
        began_s = self._loop.time()
        try:
            await self._commits.commit(changes, turn.used_keys, turn.audit)
        except StoreError as error:
            for answer in answers:
                answer.refuse(Unavailable(str(error)))
            raise
        except BaseException:
            # Interrupted: the store may still complete the commit.
            for answer in answers:
                answer.refuse(_interrupted() if answer.has_rows else NotLeading())
            raise
        took_s = self._loop.time() - began_s
        if took_s > self._settings.stall_s:
            self.losses.add_pause(took_s)
        if changes:
            self._telemetry.committed(took_s, len(answers), len(changes))
        return bool(changes)


def _interrupted() -> UncertainOutcome:
    return UncertainOutcome("this server stopped leading before the database had answered")
