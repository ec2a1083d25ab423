"""Resigning: accepted commands are answered, and a standby leads at once."""

import asyncio

import pytest

from phalanx.core.events import WorkerRegistered
from phalanx.core.model import Protocol
from phalanx.core.time_units import Micros
from phalanx.engine.engine import Engine
from phalanx.engine.errors import NotLeading
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import plan_inline
from phalanx.sim.loop import run_virtually
from phalanx.store.memory import MemoryDatabase, MemoryStore
from tests.integration.server.waiting import pass_time


def an_engine(name: str, database: MemoryDatabase) -> Engine:
    loop = asyncio.get_running_loop()

    def clock() -> Micros:
        return round(loop.time() * 1_000_000) + 1

    store = MemoryStore(clock=clock, database=database)
    ids = (f"{name}-{n}" for n in range(10**9))
    return Engine(
        store,
        HostEnvironment(name, f"http://{name}", clock, lambda: next(ids)),
        planner=plan_inline,
    )


def registered(number: int) -> WorkerRegistered:
    return WorkerRegistered(f"w-{number}", "i", Protocol.PLAIN, "h")


def test_a_stopping_leader_answers_accepted_commands_and_ends_its_lease() -> None:
    async def story() -> None:
        database = MemoryDatabase()
        first, second = an_engine("first", database), an_engine("second", database)
        runs = [asyncio.create_task(first.run())]
        await pass_time(1)
        runs.append(asyncio.create_task(second.run()))
        await pass_time(1)
        taken = [asyncio.create_task(first.apply(registered(n))) for n in range(50)]
        await asyncio.sleep(0)
        await first.stop()
        assert [task.result().workers.keys() for task in taken]
        assert runs[0].done()
        with pytest.raises(NotLeading):
            await first.apply(registered(99))
        await pass_time(2.6)
        assert second.is_leading
        assert await second.do(lambda turn: len(turn.cluster.nodes)) == 50
        runs[1].cancel()

    run_virtually(story())


def test_a_leader_that_resigns_stands_by() -> None:
    async def story() -> None:
        database = MemoryDatabase()
        first, second = an_engine("first", database), an_engine("second", database)
        runs = [asyncio.create_task(each.run()) for each in (first, second)]
        await pass_time(1)
        await first.resign()
        assert not first.is_leading
        await pass_time(5.5)
        assert second.is_leading != first.is_leading
        await pass_time(60)
        assert second.is_leading != first.is_leading
        for run in runs:
            run.cancel()

    run_virtually(story())


def test_stopping_twice_or_without_the_lead_is_harmless() -> None:
    async def story() -> None:
        engine = an_engine("only", MemoryDatabase())
        await engine.stop()
        await engine.run()
        await engine.stop()

    run_virtually(story())
