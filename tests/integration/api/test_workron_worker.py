"""Workron's own worker runs the tasks of a server, on every store and through every fault."""

import base64
from contextlib import AsyncExitStack
from typing import Any

from phalanx.core.model import Phase
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from tests.integration.api.serving import Running, quick, serving
from tests.integration.api.test_jobs import submit
from tests.integration.api.workron_worker import Machine, WorkronWorker

GANG = {"command": "python train.py", "gang_size": 2}


async def workers(
    stack: AsyncExitStack, server: Running, *names: str, pollers: int = 1
) -> tuple[Machine, dict[str, WorkronWorker]]:
    machine = Machine()
    made = {name: WorkronWorker(server, machine, name, pollers) for name in names}
    for worker in made.values():
        await stack.enter_async_context(worker)
    return machine, made


async def shown(server: Running, job: str) -> dict[str, Any]:
    found: dict[str, Any] = (await server.call("GET", f"/jobs/{job}")).body
    return found


async def finish(server: Running, machine: Machine, *jobs: str) -> None:
    """Let every process succeed, and wait until the jobs are done."""
    for process in machine.alive():
        process.exit()
    await server.until(lambda cluster: not cluster.gangs.keys() & set(jobs))
    for job in jobs:
        assert (await shown(server, job))["phase"] == "done"
    assert machine.overlaps == []


async def test_three_pollers_run_three_tasks_at_a_time(on_each_store: Running) -> None:
    server = on_each_store
    async with AsyncExitStack() as stack:
        machine, _ = await workers(stack, server, "a", pollers=3)
        jobs = [(await submit(server))["id"] for _ in range(4)]
        await machine.until(lambda: len(machine.alive()) == 3)
        waiting = [job for job in jobs if (await shown(server, job))["phase"] == "pending"]
        assert len(waiting) == 1
        machine.alive()[0].exit()
        await machine.until(lambda: len(machine.processes) == 4)
        await finish(server, machine, *jobs)
        # The server has seen three pollers by now, so a gang of three fits.
        gang = (await submit(server, {**GANG, "gang_size": 3, "resources": {"memory_mb": 300}}))[
            "gang_id"
        ]
        await machine.until(lambda: len(machine.alive()) == 3)
        peers = "a.example:9000,a.example:9001,a.example:9002"
        assert {process.env["GANG_PEERS"] for process in machine.alive()} == {peers}
        await finish(server, machine, gang)


async def test_a_failed_task_stops_its_gang_which_runs_again(on_each_store: Running) -> None:
    server = on_each_store
    async with AsyncExitStack() as stack:
        machine, _ = await workers(stack, server, "a", "b", "c")
        gang = (await submit(server, {**GANG, "gang_size": 3}))["gang_id"]
        await machine.until(lambda: len(machine.alive(attempt=1)) == 3)
        machine.alive()[1].exit(3)
        await machine.until(lambda: len(machine.alive(attempt=2)) == 3)
        assert (await shown(server, gang))["failures"] == 1
        await finish(server, machine, gang)


async def test_a_preempted_process_that_ignores_sigterm_is_killed(on_each_store: Running) -> None:
    server = on_each_store
    async with AsyncExitStack() as stack:
        machine, _ = await workers(stack, server, "a", "b")
        gang = (await submit(server, GANG))["gang_id"]
        await machine.until(lambda: len(machine.alive()) == 2)
        first, second = machine.alive()
        first.ignores_sigterm = True
        assert (await server.call("POST", f"/jobs/{gang}/requeue")).status == 200
        await machine.until(lambda: len(machine.alive(attempt=2)) == 2)
        assert (first.was_killed, second.was_killed, second.code) == (True, False, 143)
        assert (await shown(server, gang))["failures"] == 0
        await finish(server, machine, gang)


async def test_a_checkpoint_of_any_size_reaches_the_next_attempt(on_each_store: Running) -> None:
    server = on_each_store
    async with AsyncExitStack() as stack:
        machine, made = await workers(stack, server, "a", "b")
        made["a"].checkpoint = b'{"step": 7}'
        made["b"].checkpoint = bytes(range(256)) * 1000
        gang = (await submit(server, GANG))["gang_id"]
        await machine.until(lambda: len(machine.alive()) == 2)
        saved = {p.task: w.checkpoint for w in made.values() for p in w.processes}
        assert (await server.call("POST", f"/jobs/{gang}/requeue")).status == 200
        await machine.until(lambda: len(machine.alive(attempt=2)) == 2)
        for process in machine.alive():
            expected = saved[process.task] or b""
            url = process.env["CHECKPOINT_URL"]
            assert (await server.client.get(url)).content == expected
            if len(expected) < 1000:
                assert base64.b64decode(process.env["CHECKPOINT_DATA"]) == expected
            else:
                assert "CHECKPOINT_DATA" not in process.env
        await finish(server, machine, gang)


async def test_a_gang_survives_a_killed_worker(store: Store) -> None:
    async with AsyncExitStack() as stack:
        settings = quick(lost_after_s=3.0)
        server = await stack.enter_async_context(serving(store, settings=settings))
        machine, made = await workers(stack, server, "a", "b", "c")
        gang = (await submit(server, GANG))["gang_id"]
        await machine.until(lambda: len(machine.alive()) == 2)
        victim = next(worker for worker in made.values() if worker.processes)
        await victim.kill()
        await machine.until(lambda: len(machine.alive(attempt=2)) == 2)
        # Reports of the later attempts are accepted, though they name neither worker nor epoch.
        assert (await server.call("POST", f"/jobs/{gang}/requeue")).status == 200
        await machine.until(lambda: len(machine.alive(attempt=3)) == 2)
        assert (await shown(server, gang))["failures"] == 1
        await finish(server, machine, gang)


async def test_a_worker_that_was_frozen_never_runs_a_task_twice(store: Store) -> None:
    async with AsyncExitStack() as stack:
        settings = quick(lost_after_s=3.0)
        server = await stack.enter_async_context(serving(store, settings=settings))
        machine, made = await workers(stack, server, "a", pollers=3)
        jobs = [(await submit(server))["id"] for _ in range(2)]
        await machine.until(lambda: len(machine.alive()) == 2)
        made["a"].freeze()
        await server.until(lambda cluster: cluster.nodes["a"].worker.lost_at is not None)
        # Both jobs are pending again, and the third poller is idle when the worker continues. The
        # processes do not end before they are killed.
        for process in machine.alive(attempt=1):
            process.ignores_sigterm = True
        made["a"].thaw()
        await machine.until(lambda: len(machine.alive(attempt=2)) == 2)
        await finish(server, machine, *jobs)


async def test_an_idle_poller_does_not_take_over_the_task_of_a_frozen_one() -> None:
    async with AsyncExitStack() as stack:
        store, settings = MemoryStore(clock=wall_clock), quick(lost_after_s=3.0)
        server = await stack.enter_async_context(serving(store, settings=settings))
        machine, made = await workers(stack, server, "a", pollers=3)
        job = (await submit(server))["id"]
        await machine.until(machine.alive)
        worker = made["a"]
        [busy] = machine.alive()
        worker.freeze(worker.poller_of(busy))
        await server.until(lambda cluster: cluster.gangs[job].job.phase is Phase.PENDING)
        polls = worker.polls
        await machine.until(lambda: worker.polls > polls + 6)
        assert machine.alive() == [busy]
        worker.thaw()
        await machine.until(lambda: machine.alive(attempt=2))
        await finish(server, machine, job)
