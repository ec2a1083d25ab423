"""A timer that breaks a rule of the core is dropped: no leader ends for it."""

import asyncio

import pytest

from phalanx.core import cluster
from phalanx.core.errors import IllegalTransition
from phalanx.core.events import CancelRequested, ScheduleTimedOut, Submitted
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import plan_inline
from phalanx.engine.telemetry import TelemetryFanout
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from tests.driver import spec
from tests.integration.server.waiting import pass_time


class _Refusals(TelemetryFanout):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def timer_refused(self, event: str, error: str) -> None:
        self.errors.append(error)


async def _run(refusals: _Refusals) -> None:
    loop = asyncio.get_running_loop()

    def clock() -> int:
        return round(loop.time() * 1_000_000) + 1

    host = HostEnvironment("s", "http://s", clock, lambda: str(loop.time()))
    engine = Engine(MemoryStore(clock=clock), host, planner=plan_inline)
    engine.telemetry = refusals
    running = asyncio.create_task(engine.run())
    await pass_time(1)
    await engine.apply(Submitted("j-1", spec(schedule_timeout="5s")))
    await pass_time(10)
    await engine.apply(CancelRequested("j-1"))
    running.cancel()


def test_a_timer_that_breaks_a_rule_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise IllegalTransition("a bug")

    monkeypatch.setitem(cluster._HANDLERS, ScheduleTimedOut, broken)
    refusals = _Refusals()
    run_virtually(_run(refusals))
    assert refusals.errors == ["a bug"]
