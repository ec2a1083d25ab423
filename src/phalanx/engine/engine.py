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
from phalanx.engine.writer import Observer, Work
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

    @property
    def _term(self) -> LeaderTerm | None:
        return self._leadership.term

    # Commands

    @property
    def is_leading(self) -> bool:
        return self._term is not None and self._term.is_leading

    @property
    def term(self) -> int | None:
        return self._term.number if self._term is not None else None

    @property
    def url(self) -> str:
        """Where this server is reached."""
        return self._host.url

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why each pending job is pending, as of the last plan."""
        return self._term.reasons if self._term is not None else {}

    def check_leading(self) -> int:
        """The term that this server leads under at this moment. Raises NotLeading."""
        if self._term is None or not self._term.is_leading:
            leader = self._leadership.leader
            raise NotLeading(leader.url if leader is not None else None)
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
        await self.do(lambda turn: None if writer is None else writer.losses.release_brake())

    def hear_worker(self, worker: str) -> None:
        """Renew a worker's deadline."""
        if self._term is not None and self._term.writer is not None:
            self._term.writer.losses.hear_worker(worker)

    def hear_runner(self, attempt: AttemptKey) -> None:
        """Renew the deadline of an attempt run over the plain protocol."""
        if self._term is not None and self._term.writer is not None:
            self._term.writer.losses.hear_runner(attempt)

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
