"""Instructions that appear in the same turn as an agent's sync call are not missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from phalanx.core.errors import Conflict, CoreError, Unknown
from phalanx.core.events import (
    Accepted,
    Event,
    Inventoried,
    Placed,
    Placement,
    Submitted,
    WorkerRegistered,
    WorkerRemoved,
)
from phalanx.core.model import Assignment, Protocol
from phalanx.core.time_units import Micros
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.host import HostEnvironment
from phalanx.plan.decisions import Plan
from phalanx.plan.explain.reason_index import PendingReasons
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from phalanx.wire.sync import SyncRequest, Want
from tests.driver import spec
from tests.integration.server.waiting import pass_time


async def plan_nothing(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
    return Plan(now, (), PendingReasons(state.pending.fork()))


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Engine, AgentSync]]:
    """A leader with two workers that run nothing."""
    loop = asyncio.get_running_loop()

    def clock() -> Micros:
        return round(loop.time() * 1_000_000) + 1

    store = MemoryStore(clock=clock)
    ids = iter(map(str, range(10**9)))
    host = HostEnvironment("s", "http://s", clock, lambda: next(ids))
    engine = Engine(store, host, planner=plan_nothing)
    agent_sync = AgentSync(engine, store)
    engine.observers.append(agent_sync.observe)
    running = asyncio.create_task(engine.run())
    await pass_time(1)
    for worker in ("w-1", "w-2"):
        await engine.apply(WorkerRegistered(worker, "i", Protocol.SYNC, worker))
        await engine.apply(Inventoried(worker, "i", ()))
    yield engine, agent_sync
    running.cancel()


def test_a_release_in_the_turn_of_a_sync_reaches_the_agent_at_once() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        async with two_workers() as (engine, agent_sync):
            await engine.apply(Submitted("j-1", spec(2)))
            version = await engine.do(lambda turn: turn.cluster.gangs["j-1"].job.version)
            assignments = (Assignment(0, "w-1"), Assignment(1, "w-2"))
            await engine.apply(Placed((Placement("j-1", version, assignments),)))
            await engine.apply(Accepted("j-1.0", 1))
            # The first agent's call is handled, and then, in the same turn, the second accepts.
            request = SyncRequest("i", 1, engine.term or 0, wait=10)
            call = asyncio.create_task(agent_sync.sync("w-1", request))
            while not engine._term.writer._commands:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            began = loop.time()
            await engine.apply(Accepted("j-1.1", 1))
            reply = await call
            took = loop.time() - began
            assert [order.want for order in reply.tasks] == [Want.RUN]
            return took

    assert run_virtually(story()) < 1


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (WorkerRemoved("w-1", "me"), Unknown),
        (WorkerRegistered("w-1", "another", Protocol.SYNC, "w-1"), Conflict),
    ],
)
def test_the_held_call_of_a_superseded_agent_is_refused_at_once(
    event: Event, refusal: type[CoreError]
) -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        async with two_workers() as (engine, agent_sync):
            request = SyncRequest("i", 1, engine.term or 0, wait=10)
            call = asyncio.create_task(agent_sync.sync("w-1", request))
            await pass_time(1)
            assert not call.done(), "it is held"
            began = loop.time()
            await engine.apply(event)
            with pytest.raises(refusal):
                await call
            return loop.time() - began

    assert run_virtually(story()) < 1
