"""Planned removals leave failure detection alone: the loss brake counts unexpected losses only."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from phalanx.core.events import DrainRequested, WorkerLeaving, WorkerRegistered, WorkerRemoved
from phalanx.core.model import Protocol
from phalanx.core.records import WorkerDeclaredLost
from phalanx.core.time_units import Micros
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import plan_inline
from phalanx.engine.turn import Turn
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from tests.integration.server.waiting import pass_time

WORKERS = [f"w-{number}" for number in range(40)]
#: More than 10, and more than a fifth.
PLANNED = WORKERS[:15]
VICTIM = WORKERS[-1]

Plan = Callable[[Engine, str], Awaitable[object]]


class _Fleet:
    """Workers that report every second, on a virtual clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.silent: set[str] = set()
        self.lost: dict[str, float] = {}
        host = HostEnvironment("s", "http://s", self._clock, lambda: str(self._loop.time()))
        store = MemoryStore(clock=self._clock)
        self.engine = Engine(store, host, planner=plan_inline, observers=[self._observe])

    def _clock(self) -> Micros:
        return round(self._loop.time() * 1_000_000) + 1

    def _observe(self, turn: Turn) -> None:
        for record in turn.records():
            if isinstance(record, WorkerDeclaredLost):
                self.lost[record.worker] = self._loop.time()

    async def register(self) -> None:
        for worker in WORKERS:
            await self.engine.apply(WorkerRegistered(worker, "i-1", Protocol.SYNC, worker))
            self.engine.hear_worker(worker)

    async def run_for(self, seconds: int) -> None:
        for _ in range(seconds):
            await pass_time(1)
            for worker in WORKERS:
                if worker not in self.silent:
                    self.engine.hear_worker(worker)


async def _detection_times(plan: Plan) -> dict[str, float]:
    """When each worker is declared lost, in seconds after the planned removals at 0 s; one more
    worker dies at 15 s."""
    fleet = _Fleet()
    running = asyncio.create_task(fleet.engine.run())
    await pass_time(1)
    await fleet.register()
    await fleet.run_for(10)
    began_s = asyncio.get_running_loop().time()
    fleet.silent.update(PLANNED)
    for worker in PLANNED:
        await plan(fleet.engine, worker)
    await fleet.run_for(15)
    fleet.silent.add(VICTIM)
    await fleet.run_for(400)
    running.cancel()
    return {worker: at_s - began_s for worker, at_s in fleet.lost.items()}


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda engine, w: engine.apply(WorkerRemoved(w, "ada")), id="removed"),
        pytest.param(lambda engine, w: engine.apply(WorkerLeaving(w)), id="leaving"),
        pytest.param(
            lambda engine, w: engine.apply(DrainRequested(w, "moving out", "ada")), id="drained"
        ),
    ],
)
def test_a_worker_that_dies_after_planned_removals_is_lost_after_45_seconds(plan: Plan) -> None:
    lost = run_virtually(_detection_times(plan))
    assert lost[VICTIM] == pytest.approx(45, abs=1)
    assert all(at_s == pytest.approx(30, abs=1) for w, at_s in lost.items() if w != VICTIM)


def test_unexpected_losses_of_as_many_workers_engage_the_brake() -> None:
    async def nothing(engine: Engine, worker: str) -> None:
        """The workers fall silent without a word."""

    lost = run_virtually(_detection_times(nothing))
    assert lost[VICTIM] == pytest.approx(330, abs=1)
