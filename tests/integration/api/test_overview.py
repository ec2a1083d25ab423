"""The cluster as a whole: overview, usage, map, shares, plans of queues, servers."""

import asyncio
from typing import Any

import pytest

from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros
from phalanx.engine import engine as engine_module
from phalanx.engine.planner_loop import plan_inline
from phalanx.engine.usage_history import UsageSample
from phalanx.host.clock import wall_clock
from phalanx.plan.decisions import Plan
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.protocol import Note
from tests.integration.api.serving import Running, quick, serving
from tests.integration.server.waiting import PATIENCE_S


async def a_cluster(server: Running, workers: int = 2, gpus: int = 4) -> None:
    """Plain workers with GPUs, in racks."""
    for number in range(workers):
        worker = {
            "id": f"w-{number}",
            "resources": {"gpu": gpus, "cpu": 8},
            "slots": 8,
            "tags": {"rack": f"r{number // 2}"},
        }
        assert (await server.call("POST", "/workers/register", worker)).status == 201


async def submit(server: Running, name: str, tasks: int, gpus: float = 1, **fields: Any) -> str:
    job = {
        "name": name,
        "namespace": "ml",
        "roles": {"worker": {"command": "true", "replicas": tasks, "resources": {"gpu": gpus}}},
        **fields,
    }
    reply = await server.call("POST", "/jobs", job)
    assert reply.status == 201, reply.body
    return str(reply.body["id"])


async def placed(server: Running, job: str) -> None:
    await server.until(lambda cluster: cluster.gangs[job].job.phase == "starting")


async def test_the_overview_says_what_is_used_and_what_is_pending_and_why(server: Running) -> None:
    await a_cluster(server)
    job = await submit(server, "train", 5)
    await placed(server, job)
    await submit(server, "large", 8)
    await server.until(lambda cluster: len(cluster.gangs) == 2)
    await server.services.usage.sample()
    seen = (await server.call("GET", "/overview")).body
    assert (seen["gpus"], seen["used_gpus"]) == (8, 5)
    assert (seen["running"], seen["running_tasks"], seen["pending"]) == (1, 5, 1)
    assert seen["workers"] == {"active": 2, "cordoned": 0, "leaving": 0, "lost": 0}
    [pending] = seen["first_pending"]
    assert (pending["name"], pending["size"], pending["resources"]) == ("ml/large", 8, {"gpu": 1})
    assert seen["mean_used_share"] == 5 / 8


async def test_the_map_names_the_job_on_each_gpu(server: Running) -> None:
    await a_cluster(server)
    job = await submit(server, "train", 1, 3)
    await placed(server, job)
    await submit(server, "large", 1, 4)
    await submit(server, "larger", 4, 4)
    await server.until(lambda cluster: len(cluster.gangs) == 3)
    seen = (await server.call("GET", "/map")).body
    assert [worker["labels"] for worker in seen["workers"]] == [{"rack": "r0"}] * 2
    on_gpus = {
        (worker["id"], device): seen["jobs"][task["job"]]["name"]
        for worker in seen["workers"]
        for task in worker["tasks"]
        for device in task["devices"]
    }
    assert sorted(on_gpus.values()).count("ml/train") == 3
    assert seen["smallest_request"] == 4


async def test_samples_of_an_earlier_leader_are_shown_and_old_ones_are_removed() -> None:
    database, now = MemoryDatabase(), wall_clock()
    store = MemoryStore(clock=wall_clock, database=database)
    async with serving(store) as first:
        await a_cluster(first)
        await first.services.usage.sample()
        await first.engine.resign()
    old = Note("usage", "0", now - 30 * HOUR, "[]")
    await store.put_note(old)
    async with serving(MemoryStore(clock=wall_clock, database=database)) as second:
        hour = (await second.call("GET", "/usage")).body
        assert [point["gpus"] for point in hour["points"]] == [8]
        day = (await second.call("GET", "/usage?window=day")).body
        assert (hour["step_s"], day["step_s"]) == (60, 300)
        await second.services.usage.sample()
        assert old not in await store.notes("usage")
        assert (await second.call("GET", "/usage?window=week")).status == 400


async def test_a_day_of_samples_is_bounded_and_drawn_in_steps(server: Running) -> None:
    usage, now = server.services.usage, wall_clock()
    await usage.load()
    for minute in range(2000, 0, -1):
        usage._samples.append(UsageSample(now - minute * MINUTE, 8000, 4000, 1, 2))
    assert len(usage._samples) <= 1500
    day = (await server.call("GET", "/usage?window=day")).body
    assert 280 <= len(day["points"]) <= 290
    assert {point["used_gpus"] for point in day["points"]} == {4}


async def test_queues_show_what_they_use_deserve_and_borrow(server: Running) -> None:
    await a_cluster(server)
    for name, quota in (("ml", 2), ("vision", 4)):
        await server.call("PUT", f"/queues/{name}", {"quota": {"gpu": quota}})
    await server.call("PUT", "/queues/ml-train", {"parent": "ml"})
    job = await submit(server, "train", 6, queue="ml-train")
    await placed(server, job)
    await submit(server, "vit", 4, queue="vision")
    await server.until(lambda cluster: len(cluster.gangs) == 2)
    shares = (await server.call("GET", "/shares")).body
    assert shares["capacity"]["gpu"] == 8
    by_name = {share["queue"]: share for share in shares["queues"]}
    ml, vision = by_name["ml"], by_name["vision"]
    assert (ml["used"], ml["deserved"], ml["borrowed"]) == ({"gpu": 6}, {"gpu": 4}, {"gpu": 2})
    assert (vision["requested"], vision["deserved"], vision["pending"]) == (
        {"gpu": 4},
        {"gpu": 4},
        1,
    )
    assert by_name["ml-train"]["running"] == 1
    assert by_name["ml-train"]["parent"] == "ml"


async def test_a_queue_that_deserves_only_its_starving_gang_shows_that_share() -> None:
    settings = quick(starve_after_s=0)
    async with serving(MemoryStore(clock=wall_clock), settings=settings) as server:
        await a_cluster(server, workers=1)
        await server.call("PUT", "/queues/owner", {"quota": {"gpu": 4}})
        await placed(server, await submit(server, "busy", 4, queue="owner"))
        await submit(server, "more", 1, queue="owner")
        await submit(server, "late", 1)
        await server.until(lambda cluster: len(cluster.gangs) == 3)
        listed = (await server.call("GET", "/queues?usage=true")).body
        shares = (await server.call("GET", "/shares")).body["queues"]
    assert {each["name"]: each["usage"]["fair_share"] for each in listed} == {
        "owner": {"gpu": 4},
        "default": {"gpu": 1},
    }
    assert {each["queue"]: each["deserved"] for each in shares} == {
        "owner": {"gpu": 4},
        "default": {"gpu": 1},
    }


async def test_a_change_of_a_queue_can_be_planned_before_it_is_made(server: Running) -> None:
    await a_cluster(server, workers=1)
    await server.call("PUT", "/queues/ml", {"limit": {"gpu": 2}})
    job = await submit(server, "train", 4, queue="ml")
    await server.until(lambda cluster: len(cluster.gangs) == 1)
    raised = (await server.call("POST", "/queues/ml/plan", {"limit": {"gpu": 4}})).body
    assert raised["message"] == "the next plan would start ml/train"
    assert [start["job"] for start in raised["starts"]] == [job]
    same = (await server.call("POST", "/queues/ml/plan", {"weight": 5})).body
    assert same["message"] == "the next plan would start and evict the same jobs"
    assert (await server.call("GET", "/queues/ml")).body["weight"] == 1
    assert (await server.call("POST", "/queues/none/plan", {"weight": 1})).status == 404
    assert (await server.call("POST", "/queues/ml/plan", {"wait": 1})).status == 400


async def test_the_leader_and_its_standbys_are_listed(server: Running) -> None:
    store, now = server.services.store, wall_clock()
    await store.put_note(Note("standby", "srv-2", now, "http://10.0.0.2:8080"))
    await store.put_note(Note("standby", "srv-3", now - 12 * SECOND, "http://10.0.0.3:8080"))
    await store.put_note(Note("standby", "srv-4", now - MINUTE, "http://10.0.0.4:8080"))
    server.services.clock = lambda: now
    seen = (await server.call("GET", "/servers")).body
    assert seen["leader"]["url"] == server.url
    heard, silent = seen["standbys"]
    assert heard == {"name": "srv-2", "url": "http://10.0.0.2:8080", "silent_s": None}
    assert (silent["name"], silent["silent_s"]) == ("srv-3", 12)


async def test_a_long_plan_holds_up_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, goes_on = 0, asyncio.Event()

    async def slow(state: PlannerState, delta: PlannerDelta, now: Micros) -> Plan:
        nonlocal plans
        plans += 1
        if held:
            await goes_on.wait()
        return await plan_inline(state, delta, now)

    held: list[bool] = []
    monkeypatch.setattr(engine_module, "PlannerThread", lambda: slow)
    async with serving(MemoryStore(clock=wall_clock)) as server:
        await a_cluster(server)
        assert (await server.call("GET", "/map")).body["jobs"] == []
        held.append(True)
        before = plans
        await submit(server, "train", 2)
        async with asyncio.timeout(PATIENCE_S):
            while plans == before:
                await asyncio.sleep(0)
        server.services.snapshots.forget()
        seen = (await server.call("GET", "/overview")).body
        assert (seen["gpus"], seen["pending"]) == (8, 1)
        held.clear()
        goes_on.set()
