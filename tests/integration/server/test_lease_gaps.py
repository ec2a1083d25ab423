"""A leader that cannot renew its lease does not count the silence of its workers."""

import asyncio

from phalanx.core.events import WorkerRegistered
from phalanx.core.model import Protocol
from phalanx.core.records import kind_of
from phalanx.core.time_units import Micros
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import plan_inline
from phalanx.engine.turn import Turn
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import StoreError
from tests.integration.server.waiting import pass_time


class Absent(MemoryStore):
    """Reads and commits as usual, but cannot renew leases while it is away."""

    is_away = False

    async def renew(self, term: int, lease: Micros) -> None:
        if self.is_away:
            raise StoreError("away")
        await super().renew(term, lease)


def test_time_without_a_lease_does_not_count_as_a_workers_silence() -> None:
    async def story() -> tuple[list[str], list[str]]:
        loop = asyncio.get_running_loop()

        def clock() -> Micros:
            return round(loop.time() * 1_000_000) + 1

        store = Absent(clock=clock)
        records: list[str] = []

        def observe(turn: Turn) -> None:
            records.extend(kind_of(record) for record in turn.records())

        host = HostEnvironment("s", "http://s", clock, lambda: str(loop.time()))
        engine = Engine(store, host, planner=plan_inline, observers=[observe])
        running = asyncio.create_task(engine.run())
        await pass_time(1)
        await engine.apply(WorkerRegistered("w-1", "i-1", Protocol.SYNC, "w-1"))
        engine.hear_worker("w-1")
        # Ten seconds of lease, then silence for longer than a worker may be silent.
        store.is_away = True
        await pass_time(45)
        assert not engine.is_leading
        store.is_away = False
        await pass_time(5)
        assert engine.is_leading
        during = list(records)
        # From here on its own silence counts.
        await pass_time(40)
        running.cancel()
        return during, records

    during, after = run_virtually(story())
    assert "WorkerDeclaredLost" not in during
    assert "WorkerDeclaredLost" in after
