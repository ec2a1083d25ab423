"""What goes wrong in Workron, fault by fault, and does not here.

Left out are those of its worker, a shutdown that kills at once (14) and commands that are split on
blanks (15), which tests/integration/agent has.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Phase
from phalanx.core.reasons import HeldBack
from phalanx.core.settings import CoreSettings
from phalanx.core.states import State
from phalanx.core.time_units import HOUR, SECOND
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.protocol import Batch, CommitFailed, Deposed
from tests.integration.api.serving import Running, quick, serving
from tests.integration.api.test_jobs import submit
from tests.integration.api.test_plain import a_worker, claim
from tests.integration.server.waiting import PATIENCE_S

GANG = {"command": "train", "gang_size": 2}


def memory() -> MemoryStore:
    return MemoryStore(clock=wall_clock)


async def tell(server: Running, task: str, what: str) -> int:
    return (await server.call("POST", f"/jobs/{task}/{what}")).status


async def tasks_of(server: Running, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await server.call("GET", f"/gangs/{job}")).body
    return found


async def reserved(server: Running, job: str, count: int = 2) -> list[dict[str, Any]]:
    await server.until(lambda c: c.gangs[job].count(State.RESERVED) == count)
    return await tasks_of(server, job)


async def a_running_gang(server: Running, **fields: Any) -> tuple[str, list[str]]:
    for worker in ("w-1", "w-2"):
        await a_worker(server, worker)
    job = (await submit(server, {**GANG, **fields}))["gang_id"]
    for task in await reserved(server, job):
        await claim(server, task["worker_id"])
    return job, [f"{job}.0", f"{job}.1"]


async def test_fault_1_a_lost_reservation_stops_the_running_tasks_of_its_gang() -> None:
    core = CoreSettings(accept=SECOND // 5, start=SECOND // 5)
    async with serving(memory(), settings=quick(core=core)) as server:
        for worker in ("w-1", "w-2"):
            await a_worker(server, worker)
        job = (await submit(server, GANG))["gang_id"]
        first = (await claim(server, "w-1", wait=60))["task"]  # and the other one never comes
        await server.until(lambda c: c.gangs[job].job.phase is Phase.STOPPING)
        told = (await server.call("POST", f"/jobs/{first}/heartbeat")).body
        assert told["action"] == "preempt"
        await server.call("POST", f"/jobs/{job}/hold")
        assert await tell(server, first, f"preempted?epoch={told['preemption_epoch']}") == 200
        states = [task["status"] for task in await tasks_of(server, job)]
        assert states == ["blocked", "blocked"]


async def test_fault_2_the_trigger_of_a_failure_is_not_asked_to_acknowledge(
    server: Running,
) -> None:
    job, (one, two) = await a_running_gang(server)
    assert await tell(server, one, "fail") == 200
    assert [t["status"] for t in await tasks_of(server, job)] == ["preempted", "preempting"]
    await server.call("POST", f"/jobs/{job}/hold")
    assert await tell(server, two, "preempted?epoch=1") == 200
    assert [t["status"] for t in await tasks_of(server, job)] == ["blocked", "blocked"]


async def test_fault_3_two_lost_tasks_of_a_gang_are_never_pending_outside_of_it() -> None:
    async with serving(memory()) as server:
        job, _ = await a_running_gang(server)
        server.pass_time(60)
        await server.until(
            lambda c: all(node.worker.lost_at is not None for node in c.nodes.values())
        )
        assert [t["status"] for t in await tasks_of(server, job)] == ["blocked", "blocked"]
        assert (await server.call("GET", "/jobs/next")).status == 204
        story = (await server.call("GET", f"/jobs/{job}/events")).body["events"]
        assert "TaskClaimed" not in [event["kind"] for event in story]


async def test_fault_4_a_zombie_cannot_speak_for_another_attempt(server: Running) -> None:
    job, (one, two) = await a_running_gang(server)
    assert await tell(server, one, "fail") == 200
    # `done` of a stopping task does not count: the gang is still stopped.
    assert await tell(server, two, "done?epoch=1") == 200
    assert (await server.call("GET", f"/jobs/{job}")).body["phase"] != "done"
    for task in await reserved(server, job):
        await claim(server, task["worker_id"])
    for verb in ("heartbeat", "done", "fail", "preempted", "checkpoint"):
        reply = await server.call("POST", f"/jobs/{one}/{verb}?epoch=1", b"x")
        assert (reply.status, reply.body["error"]["code"]) == (409, "stale_epoch"), verb
    states = [task["status"] for task in await tasks_of(server, job)]
    assert states == ["running", "running"]


async def test_fault_5_a_claim_takes_the_current_reservation_or_nothing() -> None:
    core = CoreSettings(accept=SECOND // 5)
    async with serving(memory(), settings=quick(core=core)) as server:
        await a_worker(server, "w-1")
        job = (await submit(server, {"command": "x", "resources": {}}))["id"]
        await server.until(lambda c: c.gangs[job].job.epoch >= 1)
        await server.call("POST", f"/jobs/{job}/hold")
        await server.until(lambda c: c.gangs[job].count(State.PENDING))
        assert (await server.call("GET", "/jobs/next?worker_id=w-1")).status == 204
        await server.call("POST", f"/jobs/{job}/release")
        again = await claim(server, "w-1", wait=60)
        assert again["reservation_epoch"] >= 2
        assert await tell(server, job, "done?epoch=1") == 409
        assert await tell(server, job, f"done?epoch={again['reservation_epoch']}") == 200


async def test_fault_6_stopping_tasks_and_single_jobs_occupy_their_worker(
    server: Running,
) -> None:
    await a_worker(server, "w-1", resources={"gpu": 1}, slots=8)
    one = (await submit(server, {"command": "x", "resources": {"gpu": 1}}))["id"]
    await claim(server, "w-1", wait=60)
    await server.call("POST", f"/jobs/{one}/hold")
    assert await tell(server, one, "requeue") == 200
    two = (await submit(server, {"command": "y", "resources": {"gpu": 1}}))["id"]
    planned = (await server.call("POST", "/plan", {"command": "z", "resources": {"gpu": 1}})).body
    assert not planned["starts"]
    [worker] = (await server.call("GET", "/workers")).body
    assert worker["free"] == {"gpu": 0}
    assert (await server.call("GET", "/jobs/next?worker_id=w-1")).status == 204
    assert await tell(server, one, "preempted?epoch=1") == 200
    assert (await claim(server, "w-1", wait=60))["gang_id"] == two


async def test_fault_7_alternating_culprits_fail_a_job_after_its_retries(server: Running) -> None:
    for worker in ("w-1", "w-2"):
        await a_worker(server, worker)
    role = {"command": "x", "replicas": 2}
    job = (await submit(server, {"roles": {"w": role}, "backoff": 0, "max_retries": 3}))["id"]
    for attempt in (1, 2, 3):
        for task in await reserved(server, job):
            await claim(server, task["worker_id"])
        culprit, other = (0, 1) if attempt % 2 else (1, 0)
        assert await tell(server, f"{job}.{culprit}", f"fail?epoch={attempt}") == 200
        assert await tell(server, f"{job}.{other}", f"preempted?epoch={attempt}") == 200
    shown = (await server.call("GET", f"/jobs/{job}")).body
    assert (shown["phase"], shown["failures"]) == ("failed", 3)


def _lost_reservations(cluster: Cluster, job: str) -> int:
    pending = cluster.gangs[job].job.pending
    return 0 if pending is None else pending.lost_reservations


async def test_fault_7_lost_reservations_slow_down() -> None:
    core = CoreSettings(accept=SECOND // 10)
    async with serving(memory(), settings=quick(core=core)) as server:
        await a_worker(server, "w-1")
        job = (await submit(server, {"roles": {"w": {"command": "x"}}, "backoff": "5m"}))["id"]
        await server.until(lambda c: _lost_reservations(c, job) == 2)
        why = (await server.call("GET", f"/jobs/{job}/why")).body
        assert why["reason"]["type"] == "Backoff"


async def test_fault_8_a_large_gang_does_not_starve_behind_a_stream_of_small_jobs() -> None:
    small = {"command": "x", "resources": {"gpu": 1}}
    async with (
        serving(memory(), settings=quick(starve_after_s=0.3)) as server,
        asyncio.timeout(PATIENCE_S),
    ):
        for worker in ("w-1", "w-2"):
            await a_worker(server, worker, resources={"gpu": 1})
        await submit(server, small)
        running = {"w-1": (await claim(server, "w-1", wait=60))["id"]}
        large = (await submit(server, {**small, "gang_size": 2}))["gang_id"]
        # One small job always runs and another is pending, so both workers are never free at once.
        is_kept = False
        while not is_kept:
            [(busy, task)] = running.items()
            job = (await submit(server, small))["id"]
            free = "w-2" if busy == "w-1" else "w-1"
            path = f"/jobs/next?wait=0.2&worker_id={free}"
            while (reply := await server.call("GET", path)).status == 204 and not is_kept:
                is_kept = server.engine.reasons.get(job) == HeldBack(large, None)
            assert await tell(server, task, "done?epoch=1") == 200
            running = {free: reply.body["id"]} if reply.status == 200 else {}
        await server.until(lambda c: c.gangs[large].count(State.RESERVED) == 2)


async def test_fault_9_a_reservation_and_a_submission_are_whole_or_not_at_all() -> None:
    """The store fails when a gang is being added, and when one is being reserved."""
    store = Breaking(clock=wall_clock)
    async with serving(store) as server:
        store.refuse = lambda batch: bool(batch.jobs)
        writer = server.writer
        refused = await server.call("POST", "/jobs", GANG)
        assert (refused.status, refused.body["error"]["code"]) == (503, "unavailable")
        store.refuse = lambda batch: False
        await server.lead(after=writer)
        assert (await server.call("GET", "/jobs")).body["jobs"] == []
        for worker in ("w-1", "w-2"):
            await a_worker(server, worker)
        store.refused.clear()
        store.refuse = lambda batch: any(t.state is State.RESERVED for t in batch.tasks)
        writer = server.writer
        job = (await submit(server, GANG))["gang_id"]
        await store.refused.wait()
        store.refuse = lambda batch: False
        await server.lead(after=writer)
        states = {task["status"] for task in await tasks_of(server, job)}
        assert states in ({"blocked"}, {"reserved"})
        await reserved(server, job)


async def test_fault_10_a_deposed_leader_writes_nothing() -> None:
    database = MemoryDatabase()
    old = MemoryStore(clock=wall_clock, database=database)
    async with serving(old) as server:
        database.expires_at = 0  # as if it had been frozen past its lease
        successor = MemoryStore(clock=wall_clock, database=database)
        term = await successor.lead("other", "http://other", HOUR)
        assert term is not None
        reply = await server.call("POST", "/jobs", {"command": "x"})
        assert reply.status in (307, 503)
        assert (await successor.load(term)).jobs == []
        with pytest.raises(Deposed):
            await old.commit(term - 1, Batch("late"))


async def test_fault_11_any_bytes_are_a_checkpoint_and_large_ones_do_no_harm(
    on_each_store: Running,
) -> None:
    server = on_each_store
    job = (await submit(server))["id"]
    await claim(server)
    await server.call("POST", f"/jobs/{job}/requeue")
    for data in (b"\xff\x00 not JSON", bytes(200_000)):
        reply = await server.call("POST", f"/jobs/{job}/checkpoint?epoch=1", data)
        assert reply.status == 200
    assert await tell(server, job, "preempted?epoch=1") == 200
    assert (await server.call("GET", "/jobs")).status == 200
    again = await claim(server, wait=60)
    assert len(again["env"].get("CHECKPOINT_DATA", "")) < 128 * 1024
    assert (await server.client.get(f"/jobs/{job}/checkpoint")).content == bytes(200_000)


async def test_fault_12_the_epoch_of_a_heartbeat_is_the_one_that_is_acknowledged(
    server: Running,
) -> None:
    job = (await submit(server))["id"]
    await claim(server)
    await server.call("POST", f"/jobs/{job}/requeue")
    told = (await server.call("POST", f"/jobs/{job}/heartbeat")).body
    assert told["preemption_epoch"] > 0
    assert await tell(server, job, f"preempted?epoch={told['preemption_epoch']}") == 200


async def test_fault_13_a_failing_store_does_not_end_the_server() -> None:
    store = Breaking(clock=wall_clock)
    async with serving(store) as server:
        store.refuse = lambda batch: True
        for _ in range(3):
            writer = server.writer
            assert (await server.call("POST", "/jobs", {"command": "x"})).status == 503
            await server.lead(after=writer)
        store.refuse = lambda batch: False
        assert (await server.call("POST", "/jobs", {"command": "x"})).status == 201


async def test_fault_16_a_claim_does_not_look_at_every_job(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"command": "x", "resources": {"gpu": 1}}] * 500
    assert (await server.call("POST", "/jobs:batch", jobs)).body["accepted"] == 500
    await submit(server)
    seen: list[str] = []
    open_jobs = server.services.claims._open_jobs
    add = open_jobs._add

    def counted(cluster: Cluster, gang: Gang) -> None:
        seen.append(gang.job.id)
        add(cluster, gang)

    monkeypatch.setattr(open_jobs, "_add", counted)
    await claim(server)
    assert len(seen) <= 1
    page = (await server.call("GET", "/jobs?limit=10")).body
    assert len(page["jobs"]) == 10
    assert page["cursor"]


async def test_fault_17_a_failed_dependency_fails_its_dependants(server: Running) -> None:
    first = (await submit(server, {"roles": {"w": {"command": "x"}}, "max_retries": 1}))["id"]
    second = (await submit(server, {"command": "y", "depends_on": [first]}))["id"]
    third = (await submit(server, {"command": "z", "depends_on": [second]}))["id"]
    await claim(server)
    assert await tell(server, first, "fail") == 200
    for job in (first, second, third):
        assert (await server.call("GET", f"/jobs/{job}")).body["phase"] == "failed"
    late = await submit(server, {"command": "z", "depends_on": [first]})
    assert late["phase"] == "failed"


class Breaking(MemoryStore):
    """A store that refuses the commits that a test selects."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.refuse: Callable[[Batch], bool] = lambda batch: False
        self.refused = asyncio.Event()

    async def commit(self, term: int, batch: Batch) -> None:
        if self.refuse(batch):
            self.refused.set()
            raise CommitFailed("the disk is full")
        await super().commit(term, batch)
