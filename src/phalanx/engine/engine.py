"""A server's life: contend for leadership, lead, lose it, contend again.

Time, ids, store and planner are arguments, so that a simulation runs this very code.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.events import Event
from phalanx.core.reasons import Reason
from phalanx.core.spec.job import SECOND
from phalanx.engine.commits import Commits
from phalanx.engine.errors import NotLeading, Unavailable
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import Planner, PlannerLoop, PlannerThread
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import UNWATCHED, Telemetry
from phalanx.engine.writer import Observer, Work, Writer
from phalanx.plan.state.planner_state import PlannerState
from phalanx.store.protocol import CommitFailed, Deposed, Leader, Store, StoreError

T = TypeVar("T")

#: Between two attempts at a store that does not answer.
_RETRY_S = 0.5
#: How often a standby asks for the lead: a leader that resigned is soon succeeded.
_CONTEND_S = 0.5
#: How often the loop is looked at for stalls.
_PULSE_S = 0.5


class Engine:
    def __init__(
        self,
        store: Store,
        outside: HostEnvironment,
        settings: EngineSettings | None = None,
        *,
        planner: Planner | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._store = store
        self._outside = outside
        self.settings = settings or EngineSettings()
        self._planner = planner or PlannerThread()
        self.watcher: Telemetry = UNWATCHED
        self._running: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.observers = list(observers)
        self._reign: Writer | None = None
        self._commits: Commits | None = None
        self._planning: PlannerLoop | None = None
        self._leader: Leader | None = None

    # Asking

    @property
    def is_leading(self) -> bool:
        return self._reign is not None and self._commits is not None and self._commits.holds_lease()

    @property
    def term(self) -> int | None:
        return self._commits.term if self._commits is not None else None

    @property
    def reasons(self) -> Mapping[str, Reason]:
        return self._planning.reasons if self._planning is not None else {}

    def check_leading(self) -> int:
        """The term that this server leads under at this moment. Raises NotLeading."""
        if self._commits is None or not self.is_leading:
            raise NotLeading(self._leader.url if self._leader is not None else None)
        return self._commits.term

    async def do(self, work: Work[T]) -> T:
        """Run a command in the next turn. Raises NotLeading or Unavailable besides its own."""
        self.check_leading()
        if self._reign is None:
            raise AssertionError("bug: a leader that does not reign")
        return await self._reign.do(work)

    async def apply(self, event: Event) -> Changes:
        return await self.do(lambda turn: turn.apply(event))

    async def release_brake(self) -> None:
        """Workers whose loss was held back are lost after all; an operator says so."""
        reign = self._reign
        await self.do(lambda turn: None if reign is None else reign.attendance.release_brake())

    def hear(self, worker: str) -> None:
        """A worker has spoken; its deadline starts again."""
        if self._reign is not None:
            self._reign.hear(worker)

    def hear_runner(self, task: str, epoch: int) -> None:
        """A task that is run over the plain protocol was spoken for."""
        if self._reign is not None:
            self._reign.hear_runner(task, epoch)

    # Living

    async def run(self) -> None:
        """Until stopped or cancelled."""
        self._running = asyncio.current_task()
        try:
            while not self._is_stopping:
                began = asyncio.get_running_loop().time()
                term = await self._contend()
                if term is None:
                    await asyncio.sleep(min(_CONTEND_S, self.settings.lease_s / 4))
                else:
                    await self._lead(term, began)
        finally:
            self._running = None

    async def _contend(self) -> int | None:
        try:
            lease = round(self.settings.lease_s * SECOND)
            term = await self._store.lead(self._outside.name, self._outside.url, lease)
            self._leader = None if term is not None else await self._store.leader()
        except StoreError as error:
            self.watcher.store_failed(str(error))
            await asyncio.sleep(_RETRY_S)
            return None
        if term is None:
            self.watcher.standing_by(self._leader)
        return term

    async def _lead(self, term: int, began_s: float) -> None:
        """Lead under this term until somebody else does."""
        new_id = self._outside.new_id
        self._commits = Commits(self._store, term, self.settings.lease_s, began_s, new_id)
        keeper = asyncio.create_task(self._commits.keep_lease())
        try:
            while True:
                try:
                    await self._reign_once(self._commits, keeper)
                except CommitFailed as error:
                    self.watcher.store_failed(str(error))  # memory is void; the rows are not
        except Deposed as error:
            self.watcher.stepped_down(term, str(error))
        finally:
            self._reign = self._commits = self._planning = None
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _reign_once(self, commits: Commits, keeper: asyncio.Task[None]) -> None:
        """Load, and take turns until a commit fails. Raises CommitFailed or Deposed."""
        cluster = await self._load(commits.term)
        reign = Writer(cluster, commits, self.settings, self._outside, watcher=self.watcher)
        state = PlannerState.of(cluster, self.settings.policy)
        planning = PlannerLoop(reign, state, self._planner, self.settings, self.watcher)
        reign.observers += [*self.observers, planning.observe]
        self._reign, self._planning = reign, planning
        self.watcher.leading(commits.term, cluster)
        tasks = [
            asyncio.create_task(reign.run()),
            asyncio.create_task(planning.run()),
            asyncio.create_task(_watch_for_stalls(reign, self.settings.stall_s)),
            keeper,
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reign = None
            reign.close(NotLeading())
            for task in tasks:
                if task is not keeper:
                    task.cancel()
            await asyncio.gather(*tasks[:-1], return_exceptions=True)
        for task in (tasks[0], keeper, *done):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception() or AssertionError()

    async def _load(self, term: int) -> Cluster:
        while True:
            try:
                rows = await self._store.load(term)
            except Deposed:
                raise
            except StoreError as error:
                self.watcher.store_failed(str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                now = self._outside.clock()
                return Cluster.load(rows, now, self.settings.core)

    async def resign(self) -> None:
        """Finish what was taken, answer it, and let a standby lead at once; then stand by."""
        reign, commits = self._reign, self._commits
        if reign is not None:
            with suppress(NotLeading, Unavailable):
                await reign.finish()
        if commits is not None:
            with suppress(StoreError):
                await commits.give_up()

    async def stop(self) -> None:
        """Resign, and end `run`."""
        self._is_stopping = True
        await self.resign()
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait([running])


async def _watch_for_stalls(reign: Writer, threshold_s: float) -> None:
    """While the loop stood still nobody could be heard."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.sleep(_PULSE_S)
        late = loop.time() - began - _PULSE_S
        if late > threshold_s:
            reign.stalled(late)
