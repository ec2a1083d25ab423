"""Instructions that appear in the same turn as an agent's sync call are not missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from phalanx.core.errors import Conflict, CoreError, Unknown
from phalanx.core.events import (
    Accepted,
    BackoffEnded,
    Event,
    Inventoried,
    Placed,
    Placement,
    Submitted,
    WorkerRegistered,
    WorkerRemoved,
)
from phalanx.core.model import Assignment, Protocol
from phalanx.core.spec.job import NEEDS_AGENT, JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import Micros
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.gang_inputs import InputSource, InputUnavailable, ResolvedInputs
from phalanx.engine.host import HostEnvironment
from phalanx.plan.decisions import Plan
from phalanx.plan.explain.reason_index import PendingReasons
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryStore
from phalanx.wire.sync import Reported, SyncRequest, TaskInstruction, TaskReport, TaskSecrets, Want
from tests.driver import spec
from tests.integration.server.waiting import pass_time


async def plan_nothing(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
    return Plan(now, (), PendingReasons(state.pending.fork()))


@asynccontextmanager
async def two_workers(
    source: InputSource | None = None,
) -> AsyncIterator[tuple[Engine, AgentSync]]:
    """A leader with two workers that run nothing."""
    loop = asyncio.get_running_loop()

    def clock() -> Micros:
        return round(loop.time() * 1_000_000) + 1

    store = MemoryStore(clock=clock)
    ids = iter(map(str, range(10**9)))
    host = HostEnvironment("s", "http://s", clock, lambda: next(ids))
    engine = Engine(store, host, planner=plan_nothing)
    agent_sync = AgentSync(engine, store, source)
    engine.observers.append(agent_sync.observe)
    running = asyncio.create_task(engine.run())
    await pass_time(1)
    for worker in ("w-1", "w-2"):
        labels = dict(NEEDS_AGENT)
        await engine.apply(WorkerRegistered(worker, "i", Protocol.SYNC, worker, labels=labels))
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
            while not engine._leadership.term.writer._commands:  # type: ignore[union-attr]
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


async def _ending(engine: Engine) -> SyncRequest:
    """Run the task of j-1 on w-1; the call that reports its end. The task of j-2 is pending."""
    await engine.apply(Submitted("j-1", spec(1)))
    await _place(engine)
    await engine.apply(Accepted("j-1.0", 1))
    await engine.apply(Submitted("j-2", spec(1)))
    report = TaskReport("j-1.0", 1, Reported.EXITED, exit_code=0)
    return SyncRequest("i", 1, engine.term or 0, tasks=(report,), wait=10)


def test_an_end_is_confirmed_together_with_the_next_task_of_the_worker() -> None:
    async def story() -> list[Want]:
        async with two_workers() as (engine, agent_sync):
            call = asyncio.create_task(agent_sync.sync("w-1", await _ending(engine)))
            await pass_time(0.01)
            assert not call.done(), "it is held"
            await _place(engine, "j-2")
            return [each.want for each in (await call).tasks]

    wants = run_virtually(story())
    assert wants[0] is Want.FORGET
    assert len(wants) == 2


def test_an_end_is_confirmed_soon_if_no_task_follows() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        async with two_workers() as (engine, agent_sync):
            request = await _ending(engine)
            began = loop.time()
            reply = await agent_sync.sync("w-1", request)
            assert [each.want for each in reply.tasks] == [Want.FORGET]
            return loop.time() - began

    assert run_virtually(story()) < 0.5


def test_an_end_that_is_reported_again_is_confirmed_at_once() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        async with two_workers() as (engine, agent_sync):
            request = await _ending(engine)
            replaced = asyncio.create_task(agent_sync.sync("w-1", request))
            await pass_time(0.01)
            began = loop.time()
            reply = await agent_sync.sync("w-1", replace(request, seq=2))
            took = loop.time() - began
            assert [each.want for each in reply.tasks] == [Want.FORGET]
            await replaced
            return took

    assert run_virtually(story()) < 0.01


class _Provider:
    """Fails until it has a value."""

    def __init__(self) -> None:
        self.value: str | None = None

    async def resolve(self, spec: JobSpec) -> ResolvedInputs:
        if self.value is None:
            raise InputUnavailable("the provider is down")
        keys = [key for role in spec.roles for key in role.secrets]
        return ResolvedInputs(dict.fromkeys(keys, self.value))


async def _place(engine: Engine, job: str = "j-1") -> None:
    version = await engine.do(lambda turn: turn.cluster.gangs[job].job.version)
    await engine.apply(Placed((Placement(job, version, (Assignment(0, "w-1"),)),)))


def test_secrets_are_resolved_before_the_release_and_sent_to_the_assigned_worker_alone() -> None:
    async def story() -> None:
        provider = _Provider()
        async with two_workers(provider) as (engine, agent_sync):
            role = {"command": "true", "env": {"A": "${resources.hub.token}", "B": "plain"}}
            await engine.apply(Submitted("j-1", job_spec({"roles": {"worker": role}})))
            await _place(engine)
            calls = iter(range(1, 99))

            async def sync(worker: str, **more: bool) -> tuple[TaskInstruction, ...]:
                request = SyncRequest("i", next(calls), engine.term or 0, wait=5)
                return (await agent_sync.sync(worker, request, **more)).tasks

            assert await sync("w-1") == (), "the provider is down, so nothing is prepared"
            gang = await engine.do(lambda turn: turn.cluster.gangs["j-1"])
            assert [task.state for task in gang.tasks] == [State.PENDING], "nothing was released"
            provider.value = "hidden"
            await engine.apply(BackoffEnded("j-1"))
            await _place(engine)
            [prepare] = await sync("w-1")
            assert prepare.want is Want.PREPARE
            assert prepare.spec is not None
            assert prepare.spec.secrets == TaskSecrets({"A": "hidden"}, {}, ("hidden",))
            assert prepare.spec.env["B"] == "plain"
            assert "A" not in prepare.spec.env
            assert await sync("w-2") == ()
            provider.value = None  # after the release its failure does no harm
            await engine.apply(Accepted("j-1.0", 2))
            [run] = await sync("w-1")
            assert run.want is Want.RUN
            assert run.spec is not None
            assert run.spec.secrets == prepare.spec.secrets

    run_virtually(story())


def test_secrets_are_not_sent_over_a_connection_that_others_can_read() -> None:
    async def story() -> None:
        provider = _Provider()
        provider.value = "hidden"
        async with two_workers(provider) as (engine, agent_sync):
            role = {"command": "true", "env": {"A": "${resources.hub.token}"}}
            await engine.apply(Submitted("j-1", job_spec({"roles": {"worker": role}})))
            await _place(engine)
            request = SyncRequest("i", 1, engine.term or 0)
            assert (await agent_sync.sync("w-1", request, is_private=False)).tasks == ()
            gang = await engine.do(lambda turn: turn.cluster.gangs["j-1"])
            assert [task.state for task in gang.tasks] == [State.PENDING]

    run_virtually(story())
