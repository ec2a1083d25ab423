"""One term of leadership: load the cluster, write and plan, until the term ends."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from phalanx.core.cluster import Cluster
from phalanx.core.reasons import Reason
from phalanx.engine.commits import Commits
from phalanx.engine.errors import NoAnswer, NotLeading
from phalanx.engine.host import HostEnvironment
from phalanx.engine.leader_lease import LeaderLease
from phalanx.engine.planner_loop import Planner, PlannerLoop
from phalanx.engine.settings import EngineSettings
from phalanx.engine.telemetry import Telemetry
from phalanx.engine.writer import Observer, Writer
from phalanx.plan.state.planner_state import PlannerState
from phalanx.store.protocol import CommitFailed, Deposed, Store, StoreError, StoreUnreadable

#: Pause between two tries at a store that does not answer.
_RETRY_S = 0.5
#: How long the end of a term waits for the outcome of the commit under way.
_SETTLE_S = 5.0
#: How often the event loop is checked for pauses.
_PULSE_S = 0.5


class LeaderTerm:
    """`began_s` is when the term was requested, on the loop's clock: its lease counts from then."""

    def __init__(  # noqa: PLR0913
        self,
        number: int,
        store: Store,
        host: HostEnvironment,
        settings: EngineSettings,
        *,
        planner: Planner,
        observers: Sequence[Observer],
        telemetry: Telemetry,
        began_s: float,
    ) -> None:
        self.number = number
        #: None while the cluster is being loaded.
        self.writer: Writer | None = None
        self._store = store
        self._host = host
        self._settings = settings
        self._planner = planner
        self._observers = observers
        self._telemetry = telemetry
        self._commits = Commits(store, number, host.new_id)
        self._lease = LeaderLease(store, number, settings.lease_s, began_s)
        self.planner_loop: PlannerLoop | None = None

    @property
    def is_leading(self) -> bool:
        return self.writer is not None and self._lease.is_valid()

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why each pending job is pending, as of the last plan."""
        return self.planner_loop.reasons if self.planner_loop is not None else {}

    async def run(self) -> None:
        """Lead until another server does."""
        renewing = asyncio.create_task(self._lease.keep_renewing())
        try:
            while True:
                try:
                    await self._write(renewing)
                except CommitFailed as error:
                    # The rows are intact; the state in memory is loaded again.
                    self._telemetry.store_failed(str(error))
        except Deposed as error:
            self._telemetry.stepped_down(self.number, str(error))
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def resign(self) -> None:
        """Answer the commands that were accepted, and end the lease."""
        if self.writer is not None:
            with suppress(NoAnswer):
                await self.writer.finish()
        with suppress(StoreError):
            await self._lease.give_up()

    async def _write(self, renewing: asyncio.Task[None]) -> None:
        """Load, and take turns until a commit fails. Raises CommitFailed or Deposed."""
        cluster = await self._load()
        writer = Writer(
            cluster,
            self._commits,
            self._lease,
            self._settings,
            self._host,
            telemetry=self._telemetry,
        )
        state = PlannerState.of(cluster, self._settings.policy)
        planner_loop = PlannerLoop(writer, state, self._planner, self._settings, self._telemetry)
        writer.observers += [*self._observers, planner_loop.observe]
        self.writer, self.planner_loop = writer, planner_loop
        self._telemetry.leading(self.number, cluster)
        writing = asyncio.create_task(writer.run())
        planning = asyncio.create_task(planner_loop.run())
        watching = asyncio.create_task(_watch_for_pauses(writer, self._settings.stall_s))
        own = (writing, planning, watching)
        try:
            done, _ = await asyncio.wait((*own, renewing), return_when=asyncio.FIRST_COMPLETED)
            self._close(writer)
            await writer.settle(_SETTLE_S)
        finally:
            self._close(writer)
            for task in own:
                task.cancel()
            await asyncio.gather(*own, return_exceptions=True)
        for task in (writing, renewing, *done):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception() or AssertionError()

    def _close(self, writer: Writer) -> None:
        self.writer = None
        writer.close(NotLeading())

    async def _load(self) -> Cluster:
        while True:
            try:
                rows = await self._store.load(self.number)
            except (Deposed, StoreUnreadable):
                raise
            except StoreError as error:
                self._telemetry.store_failed(str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                return Cluster.load(rows, self._host.clock(), self._settings.core)


async def _watch_for_pauses(writer: Writer, threshold_s: float) -> None:
    """Report pauses of the event loop: no worker could be heard in them."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        await asyncio.sleep(_PULSE_S)
        late_s = loop.time() - began_s - _PULSE_S
        if late_s > threshold_s:
            writer.losses.add_pause(late_s)
