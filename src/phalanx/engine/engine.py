"""A server's engine: contend for leadership, lead, lose it, contend again.

Time, ids, store and planner are arguments, so that a simulation runs this very code.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from phalanx.core.changes import Changes
from phalanx.core.events import Event
from phalanx.core.node import AttemptKey
from phalanx.core.reasons import Reason
from phalanx.core.spec.job import SECOND
from phalanx.engine.errors import NotLeading
from phalanx.engine.host import HostEnvironment
from phalanx.engine.leader_term import LeaderTerm
from phalanx.engine.planner_loop import ForkedState, Planner, PlannerThread
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import NO_TELEMETRY, Telemetry
from phalanx.engine.writer import Observer, Work
from phalanx.store.protocol import Leader, Store, StoreError

T = TypeVar("T")

#: Pause between two tries at a store that does not answer.
_RETRY_S = 0.5
#: How often a standby tries to lead.
_CONTEND_S = 0.5


class Engine:
    def __init__(
        self,
        store: Store,
        host: HostEnvironment,
        settings: EngineSettings | None = None,
        *,
        planner: Planner | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._store = store
        self._host = host
        self.settings = settings or EngineSettings()
        self._planner = planner or PlannerThread()
        self.observers = list(observers)
        self.telemetry: Telemetry = NO_TELEMETRY
        self._running: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._term: LeaderTerm | None = None
        self._leader: Leader | None = None

    # Commands

    @property
    def is_leading(self) -> bool:
        return self._term is not None and self._term.is_leading

    @property
    def term(self) -> int | None:
        return self._term.number if self._term is not None else None

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why each pending job is pending, as of the last plan."""
        return self._term.reasons if self._term is not None else {}

    def check_leading(self) -> int:
        """The term that this server leads under at this moment. Raises NotLeading."""
        if self._term is None or not self._term.is_leading:
            raise NotLeading(self._leader.url if self._leader is not None else None)
        return self._term.number

    async def do(self, work: Work[T]) -> T:
        """Run a command in the next turn. Raises NotLeading or Unavailable besides its own."""
        self.check_leading()
        if self._term is None or self._term.writer is None:
            raise AssertionError("bug: a leader without a writer")
        return await self._term.writer.do(work)

    async def fork_planner_state(self) -> ForkedState:
        """The planner state with everything that is durable by now, for a forecast. Raises
        NotLeading."""
        self.check_leading()
        if self._term is None or self._term.planner_loop is None:
            raise AssertionError("bug: a leader without a planner")
        return await self._term.planner_loop.fork()

    async def apply(self, event: Event) -> Changes:
        return await self.do(lambda turn: turn.apply(event))

    async def release_brake(self) -> None:
        """Declare the silent workers lost that the loss brake holds back."""
        writer = None if self._term is None else self._term.writer
        await self.do(lambda turn: None if writer is None else writer.release_brake())

    def hear_worker(self, worker: str) -> None:
        """Renew a worker's deadline."""
        if self._term is not None and self._term.writer is not None:
            self._term.writer.hear_worker(worker)

    def hear_runner(self, attempt: AttemptKey) -> None:
        """Renew the deadline of an attempt run over the plain protocol."""
        if self._term is not None and self._term.writer is not None:
            self._term.writer.hear_runner(attempt)

    # Leadership

    async def run(self) -> None:
        """Contend and lead until stopped or cancelled."""
        self._running = asyncio.current_task()
        try:
            while not self._is_stopping:
                began_s = asyncio.get_running_loop().time()
                number = await self._contend()
                if number is None:
                    await asyncio.sleep(min(_CONTEND_S, self.settings.lease_s / 4))
                else:
                    await self._lead(number, began_s)
        finally:
            self._running = None

    async def _contend(self) -> int | None:
        """The number of a new term, or None if another server leads."""
        try:
            lease = round(self.settings.lease_s * SECOND)
            number = await self._store.lead(self._host.name, self._host.url, lease)
            self._leader = None if number is not None else await self._store.leader()
        except StoreError as error:
            self.telemetry.store_failed(str(error))
            await asyncio.sleep(_RETRY_S)
            return None
        if number is None:
            self.telemetry.standing_by(self._leader)
        return number

    async def _lead(self, number: int, began_s: float) -> None:
        self._term = LeaderTerm(
            number,
            self._store,
            self._host,
            self.settings,
            planner=self._planner,
            observers=self.observers,
            telemetry=self.telemetry,
            began_s=began_s,
        )
        try:
            await self._term.run()
        finally:
            self._term = None

    async def resign(self) -> None:
        """Answer the commands that were accepted, and let a standby lead at once."""
        if self._term is not None:
            await self._term.resign()

    async def stop(self) -> None:
        """Resign, and end `run`."""
        self._is_stopping = True
        await self.resign()
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
