"""What would happen to a job if it were submitted now, and why a job is pending."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from phalanx.core.settings import CoreSettings
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Running, quick, serving
from tests.integration.server.waiting import PATIENCE_S

PRICED = quick(core=replace(CoreSettings(), price={"gpu": 3_600_000_000}))


def gang(size: int = 1, **fields: Any) -> dict[str, Any]:
    role = {"command": "train", "replicas": size, "resources": {"gpu": 1}}
    return {"roles": {"worker": role}, **fields}


async def worker(server: Running, gpus: int = 4) -> None:
    body = {"id": "w-1", "slots": 9, "resources": {"gpu": gpus}}
    assert (await server.call("POST", "/workers/register", body)).status == 201


async def running(server: Running, size: int, **fields: Any) -> str:
    """A job whose tasks all run."""
    job: str = (await server.call("POST", "/jobs", gang(size, **fields))).body["id"]
    for _ in range(size):
        claimed = await server.call("GET", "/jobs/next?worker_id=w-1&wait=60")
        assert claimed.body["gang_id"] == job
    return job


async def planned(server: Running, body: dict[str, Any]) -> Any:
    reply = await server.call("POST", "/plan", body)
    assert reply.status == 200, reply.body
    return reply.body


class Confined:
    """Lets every caller see the namespace ml only."""

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        return Principal("ada", "user", ("ml",))


async def test_a_job_that_fits_would_start_now_on_the_named_workers(server: Running) -> None:
    await worker(server)
    found = await planned(server, gang(2))
    assert (found["starts"], found["message"]) == (True, "the job would start now: 2 tasks on w-1")
    assert found["placements"] == [{"task": n, "worker": "w-1"} for n in range(2)]
    assert "alternatives" not in found


async def test_a_plan_that_evicts_names_the_victims_and_the_lost_work() -> None:
    async with serving(MemoryStore(clock=wall_clock), settings=PRICED) as server:
        await worker(server)
        low = await running(server, 4, name="low")
        found = await planned(server, gang(2, priority=9))
    [victim] = found["victims"]
    assert (victim["job"], victim["name"]) == (low, "default/low")
    assert victim["cost"] > 0
    assert victim["cost"] == round(victim["gpu_s"], 6)
    assert not found["starts"]
    assert found["message"].startswith("the job would evict default/low")
    assert found["reason"]["type"] == "WaitingForVictims"


async def test_a_victim_in_another_namespace_has_no_name() -> None:
    async with serving(MemoryStore(clock=wall_clock)) as server:
        await worker(server)
        await running(server, 4, name="secret")
        server.services.auth = Confined()
        found = await planned(server, gang(2, priority=9, namespace="ml"))
    [victim] = found["victims"]
    assert "name" not in victim
    assert "job" not in victim
    assert "secret" not in found["message"]


async def test_a_plan_has_the_reserved_start_time(server: Running) -> None:
    await worker(server)
    await running(server, 3, time_limit="1h", preemptible=False)
    found = await planned(server, gang(4))
    assert found["starts_at"] > "20"
    assert "; reserved start 20" in found["message"]
    assert [each["type"] for each in found["alternatives"]] == ["Fewer"]
    assert found["alternatives"][0]["tasks"] == 1


async def test_a_job_that_does_not_fit_the_cluster_would_never_start(server: Running) -> None:
    await worker(server)
    found = await planned(server, gang(5))
    assert "the gang needs 5 GPUs, at most 4 fit on the empty cluster" in found["message"]


async def test_a_job_above_a_limit_by_itself_would_never_start(server: Running) -> None:
    await worker(server)
    await server.call("PUT", "/queues/lab", {"limit": {"gpu": 1}})
    found = await planned(server, gang(2, queue="lab"))
    exceeds = "the gang needs 2 GPUs, the limit of queue lab is 1"
    assert found["message"] == f"the job would never start: {exceeds}"
    await running(server, 1, queue="lab")
    found = await planned(server, gang(1, queue="lab"))
    assert found["message"] == "the job would be pending: queue lab has reached its GPU limit"


async def test_why_has_a_remedy_and_alternatives(server: Running) -> None:
    await worker(server)
    await running(server, 3, name="busy", priority=2)
    job = (await server.call("POST", "/jobs", gang(2))).body["id"]
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert found["reason"]["type"] == "NotEnough"
    assert found["message"] == "pending: 1 of 2 tasks fit (short of GPUs)"
    assert found["remedy"] == "wait for GPUs to become free, or add workers"
    fewer, higher = found["alternatives"]
    assert fewer["message"] == "with 1 of 2 tasks, the job would start now"
    assert (higher["priority"], higher["victims"][0]["name"]) == (3, "default/busy")
    assert (await server.call("GET", f"/jobs/{job}")).body["phase"] == "pending"


async def test_why_names_the_rule_of_fair_share(server: Running) -> None:
    await worker(server)
    await server.call("PUT", "/queues/theirs", {"quota": {"gpu": 3}, "weight": 0})
    await running(server, 3, name="busy", queue="theirs")
    await server.call("POST", "/jobs", gang(3, queue="theirs"))
    job = (await server.call("POST", "/jobs", gang(2))).body["id"]
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    larger = "larger than the share of queue default, 1 GPU; starts when it finds 2 GPUs idle"
    assert found["rule"].startswith(f"{larger}; in ")
    assert found["remedy"] == "raise the quota or the weight of queue default, or request less"


async def test_why_says_when_a_job_is_due_and_overdue(server: Running) -> None:
    await worker(server)
    await server.call("PUT", "/queues/lab", {"quota": {"gpu": 4}})
    await server.call("PUT", "/queues/mine", {"parent": "lab"})
    await running(server, 1, name="early", queue="mine")
    await running(server, 3, name="busy")
    await server.call("POST", "/jobs", gang(4))
    job = (await server.call("POST", "/jobs", gang(3, queue="mine", time_limit="1h"))).body["id"]
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    names = ("queue", "used_share", "counted_share")
    assert [tuple(each[name] for name in names) for each in found["due"]] == [
        ("mine", 0.25, 0.25),
        ("lab", 0.25, 0.25),
    ]
    created = datetime.fromisoformat((await server.call("GET", f"/jobs/{job}")).body["created_at"])
    later = timedelta(days=14) / 4 + 1.75 * timedelta(seconds=3645)
    assert datetime.fromisoformat(found["due"][0]["at"]) - created == later
    overdue = datetime.fromisoformat(found["overdue_at"]) - created
    assert timedelta(0) <= overdue - timedelta(seconds=36450) < timedelta(seconds=5)


async def test_why_gives_no_due_time_to_a_job_that_never_fits(server: Running) -> None:
    await worker(server)
    job = (await server.call("POST", "/jobs", gang(5))).body["id"]
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert (found["due"], found["overdue_at"]) == ([], None)


async def test_why_names_the_job_without_a_time_limit_that_blocks_a_starving_one() -> None:
    async with serving(MemoryStore(clock=wall_clock), settings=quick(starve_after_s=0)) as server:
        await worker(server)
        await running(server, 1, name="endless")
        await running(server, 2, name="ends", time_limit="1h")
        body = gang(4, name="late", namespace="ml")
        job = (await server.call("POST", "/jobs", body)).body["id"]
        found = (await server.call("GET", f"/jobs/{job}/why")).body
        server.services.auth = Confined()
        confined = (await server.call("GET", f"/jobs/{job}/why")).body
    blocked = "no start can be reserved: {} runs without a time limit on w-1, which is kept for"
    blocked += " this job"
    assert found["blocked"] == {
        "message": blocked.format("default/endless"),
        "jobs": ["default/endless"],
    }
    assert found["remedy"] == (
        "wait for default/endless to end, cancel it and submit it again with a time limit, or add"
        " workers"
    )
    hidden = blocked.format("a job of another namespace")
    assert confined["blocked"] == {"message": hidden, "jobs": []}
    assert confined["remedy"] == "wait for a job of another namespace to end, or add workers"


async def test_a_blocked_job_that_is_larger_than_its_share_has_the_remedy_of_the_share() -> None:
    async with serving(MemoryStore(clock=wall_clock), settings=quick(starve_after_s=0)) as server:
        await worker(server)
        await server.call("PUT", "/queues/theirs", {"quota": {"gpu": 3}, "weight": 0})
        await running(server, 3, name="busy", queue="theirs")
        await server.call("POST", "/jobs", gang(3, queue="theirs"))
        job = (await server.call("POST", "/jobs", gang(2))).body["id"]
        found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert found["blocked"]["jobs"] == ["default/busy"]
    assert found["remedy"] == "raise the quota or the weight of queue default, or request less"


async def test_why_names_a_few_of_the_jobs_that_use_a_limit_without_a_time_limit() -> None:
    async with serving(MemoryStore(clock=wall_clock), settings=quick(starve_after_s=0)) as server:
        await worker(server, gpus=8)
        await server.call("PUT", "/queues/lab", {"limit": {"gpu": 4}})
        for name in ("a", "b", "c", "d"):
            await running(server, 1, name=name, queue="lab")
        job = (await server.call("POST", "/jobs", gang(4, queue="lab"))).body["id"]
        found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert found["message"] == "pending: queue lab has reached its GPU limit"
    names = ", ".join(found["blocked"]["jobs"][:2]) + " and 2 more"
    assert found["blocked"]["message"] == (
        f"no start can be reserved: {names} run without a time limit and use the GPU limit of queue"
        " lab"
    )
    assert found["remedy"] == (
        f"wait for {names} to end, cancel them and submit them again with a time limit, or raise"
        " the limit"
    )


async def test_why_names_cordoned_workers(server: Running) -> None:
    await worker(server)
    await server.call("POST", "/workers/w-1/cordon", {})
    job = (await server.call("POST", "/jobs", {"command": "true"})).body["id"]
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert found["message"] == "pending: does not fit: no worker accepts tasks (w-1 is cordoned)"
    assert found["remedy"] == "start a worker, or uncordon w-1"
    body = {"roles": {"a": {"command": "true", "node_selector": {"zone": "x"}}}}
    job = (await server.call("POST", "/jobs", body)).body["id"]
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert found["remedy"] == "add a worker with these labels, or change node_selector"


async def test_why_of_a_running_job_names_the_tasks_above_its_minimum(server: Running) -> None:
    await worker(server, gpus=2)
    job = (await server.call("POST", "/jobs", gang(3, min_available=2, restart="task"))).body["id"]
    for _ in range(2):
        await server.call("GET", "/jobs/next?worker_id=w-1&wait=60")
    async with asyncio.timeout(PATIENCE_S):
        while (told := (await server.call("GET", f"/jobs/{job}/why")).body)["message"] == "running":
            await asyncio.sleep(0)  # the next plan has not been made yet
    assert told["message"] == "running: 1 task above the minimum has no place (short of GPUs)"


async def test_why_of_an_ended_job_says_how_it_ended(server: Running) -> None:
    job = (await server.call("POST", "/jobs", gang())).body["id"]
    await server.call("DELETE", f"/jobs/{job}")
    found = (await server.call("GET", f"/jobs/{job}/why")).body
    assert found["phase"] == "cancelled"
    assert found["alternatives"] == []


async def test_a_member_of_a_group_is_planned_with_the_group(server: Running) -> None:
    await worker(server)
    await server.call("POST", "/jobs", gang(3, name="one", group=["default/two"]))
    alone = await planned(server, gang(1, name="three"))
    assert alone["starts"]
    fits = await planned(server, gang(1, name="two", group=["default/one"]))
    assert fits["starts"]
    too_many = await planned(server, gang(2, name="two", group=["default/one"]))
    assert too_many["reason"]["type"] == "NeverFits"
