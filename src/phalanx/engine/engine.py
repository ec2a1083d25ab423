"""A server's engine: the commands of callers, run by the writer while this server leads.

Time, ids, store and planner are arguments, so that a simulation runs this very code.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from phalanx.core.changes import Changes
from phalanx.core.events import Event
from phalanx.core.node import AttemptKey
from phalanx.core.reasons import Reason
from phalanx.engine.errors import NotLeading
from phalanx.engine.host import HostEnvironment
from phalanx.engine.leader_term import LeaderTerm
from phalanx.engine.leadership import Leadership
from phalanx.engine.planner_loop import ForkedState, Planner, PlannerThread
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import NO_TELEMETRY, Telemetry
from phalanx.engine.writer import Observer, Work, Writer
from phalanx.store.protocol import Store

T = TypeVar("T")


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
        self.settings = settings or EngineSettings()
        self.observers = list(observers)
        self.telemetry: Telemetry = NO_TELEMETRY
        self._leadership = Leadership(
            store, host, self.settings, lambda: self.telemetry, self._new_term
        )
        self._store = store
        self._host = host
        self._planner = planner or PlannerThread()

    def _new_term(self, number: int, began_s: float) -> LeaderTerm:
        return LeaderTerm(
            number,
            self._store,
            self._host,
            self.settings,
            planner=self._planner,
            observers=self.observers,
            telemetry=self.telemetry,
            began_s=began_s,
        )

    # Commands

    @property
    def is_leading(self) -> bool:
        term = self._leadership.term
        return term is not None and term.is_leading

    @property
    def term(self) -> int | None:
        term = self._leadership.term
        return None if term is None else term.number

    @property
    def url(self) -> str:
        """Where this server is reached."""
        return self._host.url

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why each pending job is pending, as of the last plan."""
        term = self._leadership.term
        return {} if term is None else term.reasons

    def check_leading(self) -> int:
        """The term that this server leads under at this moment. Raises NotLeading."""
        return self._leading_term().number

    def _leading_term(self) -> LeaderTerm:
        term = self._leadership.term
        if term is None or not term.is_leading:
            leader = self._leadership.leader
            raise NotLeading(leader.url if leader is not None else None)
        return term

    async def do(self, work: Work[T]) -> T:
        """Run a command in the next turn. Raises NotLeading or Unavailable besides its own."""
        writer = self._leading_term().writer
        if writer is None:
            raise AssertionError("bug: a leader without a writer")
        return await writer.do(work)

    async def fork_planner_state(self) -> ForkedState:
        """The planner state with everything that is durable by now, for a forecast. Raises
        NotLeading."""
        planner_loop = self._leading_term().planner_loop
        if planner_loop is None:
            raise AssertionError("bug: a leader without a planner")
        return await planner_loop.fork()

    async def apply(self, event: Event) -> Changes:
        return await self.do(lambda turn: turn.apply(event))

    async def release_brake(self) -> None:
        """Declare the silent workers lost that the loss brake holds back."""
        writer = self._writer()
        await self.do(lambda turn: None if writer is None else writer.losses.release_brake())

    def hear_worker(self, worker: str) -> None:
        """Renew a worker's deadline."""
        writer = self._writer()
        if writer is not None:
            writer.losses.hear_worker(worker)

    def hear_runner(self, attempt: AttemptKey) -> None:
        """Renew the deadline of an attempt run over the plain protocol."""
        writer = self._writer()
        if writer is not None:
            writer.losses.hear_runner(attempt)

    def _writer(self) -> Writer | None:
        term = self._leadership.term
        return None if term is None else term.writer

    # Leadership

    async def run(self) -> None:
        """Contend and lead until stopped or cancelled."""
        await self._leadership.run()

    async def resign(self) -> None:
        """Answer the commands that were accepted, and let a standby lead at once."""
        await self._leadership.resign()

    async def stop(self) -> None:
        """Resign, and end `run`."""
        await self._leadership.stop()
