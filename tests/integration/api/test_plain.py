"""The plain protocol: claims, heartbeats, reports, and who may speak for which attempt."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from phalanx.core.model import Phase
from phalanx.core.settings import CoreSettings
from phalanx.core.states import State
from phalanx.core.time_units import SECOND
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from tests.integration.api.serving import Running, quick, serving
from tests.integration.api.test_jobs import submit
from tests.integration.server.waiting import PATIENCE_S


async def claim(server: Running, worker: str | None = None, wait: float = 0) -> dict[str, Any]:
    query = f"wait={wait}" + (f"&worker_id={worker}" if worker else "")
    reply = await server.call("GET", f"/jobs/next?{query}")
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.body
    task, _, attempt = found["id"].partition("@")
    assert found["reservation_epoch"] == int(attempt)
    return found | {"task": task}


async def a_worker(server: Running, worker: str = "w-1", **fields: Any) -> None:
    reply = await server.call("POST", "/workers/register", {"id": worker, **fields})
    assert reply.status == 201


async def test_any_runner_may_claim_a_job_without_resources(on_each_store: Running) -> None:
    server = on_each_store
    low = await submit(server, {"command": "low"})
    high = await submit(server, {"command": "high", "priority": 5})
    first, second = await claim(server), await claim(server)
    assert [first["gang_id"], second["gang_id"]] == [high["id"], low["id"]]
    assert (await server.call("GET", "/jobs/next")).status == 204
    assert (await server.call("POST", f"/jobs/{first['id']}/done")).status == 200
    assert (await server.call("GET", f"/jobs/{high['id']}")).body["phase"] == "done"
    assert (await server.call("POST", f"/jobs/{low['id']}/done")).status == 200


async def test_a_job_with_resources_is_not_claimed_without_a_reservation(server: Running) -> None:
    await submit(server, {"command": "x", "resources": {"gpu": 1}})
    assert (await server.call("GET", "/jobs/next")).status == 204


async def test_many_claims_at_once_never_get_the_same_job(on_each_store: Running) -> None:
    server = on_each_store
    for _ in range(10):
        await submit(server)
    replies = await asyncio.gather(*(server.call("GET", "/jobs/next") for _ in range(25)))
    claimed = [reply.body["id"] for reply in replies if reply.status == 200]
    assert len(claimed) == len(set(claimed)) == 10


async def test_a_job_on_hold_is_not_claimed_until_it_is_released(server: Running) -> None:
    held = await submit(server)
    await server.call("POST", f"/jobs/{held['id']}/hold")
    assert (await server.call("GET", "/jobs/next")).status == 204
    await server.call("POST", f"/jobs/{held['id']}/release")
    assert (await claim(server))["gang_id"] == held["id"]


async def test_a_held_claim_is_woken_by_a_job(server: Running) -> None:
    waiting = [asyncio.create_task(claim(server, wait=60)) for _ in range(2)]
    while len(server.services.claims._held) < 2:
        await asyncio.sleep(0)
    one, two = await submit(server), await submit(server)
    claimed = await asyncio.gather(*waiting)
    assert {task["gang_id"] for task in claimed} == {one["id"], two["id"]}


async def test_the_held_claim_of_a_worker_is_woken_by_its_reservation(server: Running) -> None:
    await a_worker(server, resources={"gpu": 1})
    waiting = asyncio.create_task(claim(server, "w-1", wait=60))
    made = await submit(server, {"command": "x", "resources": {"gpu": 1}})
    assert (await waiting)["gang_id"] == made["id"]


async def test_nothing_is_claimed_for_a_client_that_has_disconnected(server: Running) -> None:
    hanging = asyncio.create_task(server.call("GET", "/jobs/next?wait=60"))
    while not server.services.claims._held:
        await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_S):
        while server.services.claims._held:
            await asyncio.sleep(0)
    made = await submit(server)
    assert (await claim(server))["gang_id"] == made["id"]


async def test_a_worker_that_never_registered_claims_jobs_without_resources(
    server: Running,
) -> None:
    await submit(server, {"command": "x", "resources": {"gpu": 1}})
    assert (await server.call("GET", "/jobs/next?worker_id=nobody")).status == 204
    made = await submit(server)
    claimed = await claim(server, "nobody")
    assert (claimed["gang_id"], claimed.get("worker_id")) == (made["id"], None)
    assert (await server.call("POST", f"/jobs/{claimed['id']}/heartbeat")).status == 200
    assert (await server.call("POST", f"/jobs/{claimed['id']}/done")).status == 200
    assert (await server.call("POST", "/workers/nobody/heartbeat")).status == 404
    assert (await server.call("GET", "/workers")).body == []


async def test_a_worker_written_in_go_registers_with_every_field_of_its_struct(
    server: Running,
) -> None:
    never = "0001-01-01T00:00:00Z"
    body: dict[str, Any] = {
        "id": "go",
        "exec_addr": "",
        "resources": {},
        "tags": None,
        "status": "",
        "last_heartbeat": never,
        "registered_at": never,
    }
    reply = await server.client.post("/workers/register", json=body | {"a\nb": 1})
    assert reply.status_code == 201, reply.text
    assert reply.json()["exec_addr"] == "go"
    ignored = reply.headers["x-ignored-fields"]
    assert ignored == "status, last_heartbeat, registered_at"
    refused = await server.call("POST", "/workers/register", body | {"protocol": "sync"})
    assert [problem["path"] for problem in refused.body["error"]["details"]] == [
        *("status", "last_heartbeat", "registered_at")
    ]


async def slots_of(server: Running, worker: str = "w-1") -> tuple[int, int]:
    """How many slots a worker has, and how many tasks."""
    shown = (await server.call("GET", "/workers")).body
    [row] = [row for row in shown if row["id"] == worker]
    return row["slots"], len(row["tasks"])


async def test_a_plain_worker_runs_as_many_tasks_as_it_polls_for(on_each_store: Running) -> None:
    server = on_each_store
    await a_worker(server)
    for _ in range(3):
        await submit(server)
    for number in (1, 2, 3):
        await claim(server, "w-1")
        assert await slots_of(server) == (number, number)


async def test_jobs_are_reserved_for_each_poller_as_far_as_they_fit(server: Running) -> None:
    await a_worker(server, resources={"memory_mb": 1000})
    for _ in range(3):
        await submit(server, {"command": "x", "resources": {"memory_mb": 400}})
    pollers = {asyncio.create_task(claim(server, "w-1", wait=60)) for _ in range(3)}
    claimed: set[asyncio.Task[dict[str, Any]]] = set()
    while len(claimed) < 2:
        done, _ = await asyncio.wait(pollers - claimed, return_when=asyncio.FIRST_COMPLETED)
        claimed |= done
    await server.until(lambda c: c.nodes["w-1"].worker.slots == 3)
    assert await slots_of(server) == (3, 2)
    for poller in pollers:
        poller.cancel()
    await asyncio.gather(*pollers, return_exceptions=True)


async def test_a_worker_that_registers_slots_has_so_many(server: Running) -> None:
    await a_worker(server, slots=2)
    for _ in range(3):
        await submit(server)
    first = await claim(server, "w-1")
    await claim(server, "w-1")
    assert (await server.call("GET", "/jobs/next?worker_id=w-1")).status == 204
    assert await slots_of(server) == (2, 2)
    assert (await server.call("POST", f"/jobs/{first['id']}/done")).status == 200
    await claim(server, "w-1")


async def test_the_task_of_a_silent_runner_without_a_worker_is_requeued(store: Store) -> None:
    async with serving(store) as server:
        made = await submit(server)
        first = await claim(server)
        assert first["reservation_epoch"] == 1
        server.pass_time(60)
        again = await claim(server, wait=60)
        assert (again["task"], again["reservation_epoch"]) == (first["task"], 2)
        shown = await server.call("GET", f"/jobs/{made['id']}")
        assert (shown.body["failures"], shown.body["attempt"]) == (1, 2)
        assert (await server.call("GET", f"/gangs/{made['id']}")).body[0]["attempts"] == 2


async def test_heartbeats_keep_the_task_of_a_runner_without_a_worker() -> None:
    async with serving(MemoryStore(clock=wall_clock), settings=quick(lost_after_s=60.0)) as server:
        await submit(server)
        task = (await claim(server))["task"]
        for _ in range(4):
            server.pass_time(30)
            assert (await server.call("POST", f"/jobs/{task}/heartbeat")).status == 200
        assert (await server.call("POST", f"/jobs/{task}/done")).status == 200


async def test_a_task_whose_claim_was_not_received_is_claimed_again(store: Store) -> None:
    async with serving(store, settings=quick(lost_after_s=60.0)) as server:
        await a_worker(server, resources={"gpu": 1})
        await submit(server, {"command": "x", "resources": {"gpu": 1}})
        lost = await claim(server, "w-1", wait=60)
        # The worker did not get that answer, and goes on asking.
        while (reply := await server.call("GET", "/jobs/next?worker_id=w-1")).status == 204:
            server.pass_time(40)
        assert reply.body["id"] == f"{lost['task']}@2"


async def test_a_task_of_several_has_to_be_named(server: Running) -> None:
    made = await submit(server, {"command": "x", "gang_size": 2})
    reply = await server.call("POST", f"/jobs/{made['id']}/done")
    assert reply.status == 404
    assert "name one of them" in reply.body["error"]["message"]


@pytest.mark.parametrize("verb", ["done", "fail", "heartbeat"])
async def test_reports_on_tasks_without_a_process_are_refused(server: Running, verb: str) -> None:
    made = await submit(server)
    assert (await server.call("POST", f"/jobs/{made['id']}/{verb}")).status == 409
    assert (await server.call("POST", f"/jobs/j-0/{verb}")).status == 404
    await server.call("DELETE", f"/jobs/{made['id']}")
    assert (await server.call("POST", f"/jobs/{made['id']}/{verb}")).status == 409


async def test_a_report_of_another_worker_is_refused(server: Running) -> None:
    await a_worker(server)
    await submit(server)
    task = (await claim(server, "w-1", wait=60))["task"]
    for verb in ("heartbeat", "done", "fail"):
        assert (await server.call("POST", f"/jobs/{task}/{verb}?worker_id=w-2")).status == 409
    assert (await server.call("POST", f"/jobs/{task}/done?worker_id=w-1")).status == 200


async def test_work_that_is_safe_is_marked(server: Running) -> None:
    made = await submit(server)
    task = (await claim(server))["task"]
    path = f"/jobs/{task}/checkpointed"
    assert (await server.call("POST", f"{path}?epoch=2")).status == 409
    assert (await server.call("POST", f"{path}?epoch=1&step=120")).status == 200
    story = (await server.call("GET", f"/jobs/{made['id']}/events")).body["events"]
    assert story[-1]["kind"] == "WorkSaved"
    assert (await server.call("POST", f"/jobs/{made['id']}/requeue")).status == 200
    assert (await server.call("POST", f"{path}?epoch=1")).status == 409


async def test_checkpoints_are_bounded_and_kept_bit_for_bit(on_each_store: Running) -> None:
    server = on_each_store
    made = await submit(server)
    task = (await claim(server))["task"]
    path = f"/jobs/{task}/checkpoint"
    assert (await server.call("GET", path)).status == 204
    assert (await server.call("POST", f"{path}?epoch=1", b"x")).status == 409
    assert (await server.call("POST", f"/jobs/{made['id']}/requeue")).status == 200
    assert (await server.call("POST", f"{path}?epoch=1", b"")).status == 400
    missing = await server.call("POST", path, b"x")
    assert (missing.status, missing.body["error"]["details"][0]["path"]) == (400, "epoch")
    both = await server.call("POST", f"/jobs/{task}@1/checkpoint?epoch=2", b"x")
    assert (both.status, both.body["error"]["details"][0]["path"]) == (400, "epoch")
    too_large = bytes(2**24 + 1)
    refused = await server.call("POST", f"{path}?epoch=1", too_large)
    assert (refused.status, refused.body["error"]["code"]) == (413, "too_large")
    data = bytes(range(256)) * 4096
    assert len(data) == 2**20
    assert (await server.call("POST", f"{path}?epoch=1", data)).status == 200
    assert (await server.client.get(path)).content == data
    assert (await server.call("POST", f"/jobs/{task}/preempted?epoch=1")).status == 200
    again = await claim(server, wait=60)
    assert "CHECKPOINT_DATA" not in again["env"]  # too large for a variable
    assert (await server.client.get(again["env"]["CHECKPOINT_URL"])).content == data
    assert (again["checkpoint_bytes"], again["reservation_epoch"]) == (2**20, 2)
    assert (await server.client.get(path)).content == data
    assert (await server.call("POST", f"/jobs/{task}/done?epoch=2")).status == 200
    assert (await server.client.get(path)).content == data


async def test_a_task_that_its_worker_stopped_alone_keeps_its_checkpoint(server: Running) -> None:
    made = await submit(server)
    task = (await claim(server))["task"]
    path = f"/jobs/{task}/checkpoint?epoch=1"
    assert (await server.call("POST", path, b"step 7")).status == 409
    assert (await server.call("POST", f"{path}&stopped=true", b"step 7")).status == 200
    assert (await server.call("POST", f"/jobs/{task}/preempted?epoch=1")).status == 200
    again = await claim(server, wait=60)
    assert (await server.client.get(again["env"]["CHECKPOINT_URL"])).content == b"step 7"
    story = (await server.call("GET", f"/jobs/{made['id']}/events")).body["events"]
    [evicted] = [event for event in story if event["kind"] == "JobEvicted"]
    assert evicted["why"].endswith(" stopped task 0 while no server answered")
    assert not [event for event in story if event["kind"] == "WorkLost"]


class _SlowStore(MemoryStore):
    """A store that does something else before it answers that a blob is stored."""

    def __init__(self) -> None:
        super().__init__(clock=wall_clock)
        self.meanwhile: Callable[[], Awaitable[object]]
        self.put: list[str] = []

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        await super().put_blob(blob_id, job, data)
        self.put.append(blob_id)
        await self.meanwhile()


async def test_a_checkpoint_that_comes_too_late_is_not_kept() -> None:
    store = _SlowStore()
    async with serving(store) as server:
        made = await submit(server)
        task = (await claim(server))["task"]
        assert (await server.call("POST", f"/jobs/{made['id']}/requeue")).status == 200
        store.meanwhile = partial(server.call, "POST", f"/jobs/{task}/preempted?epoch=1")
        late = await server.call("POST", f"/jobs/{task}/checkpoint?epoch=1", b"x")
        assert late.status == 409
        [blob] = store.put
        assert await store.get_blob(blob) is None


async def test_a_lost_worker_recovers_and_its_late_report_frees_its_slot() -> None:
    async with serving(MemoryStore(clock=wall_clock)) as server:
        await a_worker(server, resources={"gpu": 1})
        made = await submit(server, {"command": "x", "resources": {"gpu": 1}})
        task = (await claim(server, "w-1", wait=60))["task"]
        server.pass_time(60)
        await server.until(lambda c: c.nodes["w-1"].worker.lost_at is not None)
        shown = (await server.call("POST", "/workers/w-1/heartbeat")).body
        assert (shown["status"], shown["tasks"], shown["free"]) == ("active", [task], {"gpu": 0})
        late = await server.call("POST", f"/jobs/{task}/done?epoch=1")
        assert late.status == 409
        await server.until(lambda c: (task, 1) not in c.residues)
        assert (await server.call("GET", f"/jobs/{made['id']}")).body["phase"] != "done"


async def test_a_plain_worker_that_registers_again_has_lost_its_tasks(server: Running) -> None:
    await a_worker(server, incarnation="i-1")
    made = await submit(server)
    await claim(server, "w-1", wait=60)
    await a_worker(server, incarnation="i-1")
    assert (await server.call("GET", f"/jobs/{made['id']}")).body["phase"] == "running"
    await a_worker(server, incarnation="i-2")
    await server.until(lambda c: c.gangs[made["id"]].job.phase is not Phase.RUNNING)
    assert (await claim(server, "w-1", wait=60))["reservation_epoch"] == 2


async def test_a_worker_is_drained_and_uncordoned(server: Running) -> None:
    await a_worker(server)
    made = await submit(server)
    task = (await claim(server, "w-1", wait=60))["task"]
    drained = (await server.call("POST", "/workers/w-1/drain?reason=new+fans")).body
    assert drained["evicted"] == [made["id"]]
    assert drained["worker"]["cordoned"] == "new fans"
    told = (await server.call("POST", f"/jobs/{task}/heartbeat")).body
    assert told == {"action": "preempt", "preemption_epoch": 1}
    assert (await server.call("POST", f"/jobs/{task}/preempted?epoch=1")).status == 200
    assert (await server.call("GET", "/jobs/next?worker_id=w-1")).status == 204
    assert (await server.call("POST", "/workers/w-1/uncordon")).body["status"] == "active"
    assert (await claim(server, "w-1", wait=60))["task"] == task
    assert (await server.call("POST", "/workers/w-1/cordon")).body["status"] == "cordoned"
    assert (await server.call("DELETE", "/workers/w-1")).status == 204
    assert (await server.call("GET", "/workers")).body == []


async def test_a_worker_is_not_drained_before_its_deadline(server: Running) -> None:
    await a_worker(server)
    await submit(server)
    task = (await claim(server, "w-1", wait=60))["task"]
    drained = (await server.call("POST", "/workers/w-1/drain?deadline=1h")).body
    assert (drained["evicted"], drained["worker"]["status"]) == ([], "cordoned")
    assert (await server.call("POST", f"/jobs/{task}/heartbeat")).body == {}


async def test_nothing_is_claimed_from_a_queue_that_is_stopped(server: Running) -> None:
    await a_worker(server)
    assert (await server.call("POST", "/queues/default/stop")).body["stopped"] is True
    made = await submit(server)
    assert (await server.call("GET", "/jobs/next")).status == 204
    assert (await server.call("GET", "/jobs/next?worker_id=w-1")).status == 204
    started = (await server.call("POST", "/queues/default/start")).body
    assert "stopped" not in started
    assert (await claim(server, "w-1", wait=60))["task"] == f"{made['id']}.0"


async def test_an_operator_may_let_the_brake_go(server: Running) -> None:
    assert (await server.call("POST", "/workers/brake/release")).status == 204


async def test_after_an_unacknowledged_stop_reports_must_name_their_attempt() -> None:
    core = CoreSettings(stop_floor=SECOND // 10, stop_slack=0)
    async with serving(MemoryStore(clock=wall_clock), settings=quick(core=core)) as server:
        made = await submit(server, {"roles": {"w": {"command": "x"}}, "grace": 0})
        task = (await claim(server))["task"]
        await server.call("POST", f"/jobs/{made['id']}/requeue")
        assert (await claim(server, wait=60))["reservation_epoch"] == 2
        # The first attempt may be alive, and the report may come from it.
        assert (await server.call("POST", f"/jobs/{task}/done")).status == 409
        assert (await server.call("POST", f"/jobs/{task}/done?epoch=1")).status == 409
        assert (await server.call("POST", f"/jobs/{task}/done?epoch=2")).status == 200


async def test_an_attempt_whose_end_was_seen_leaves_later_reports_free(server: Running) -> None:
    await submit(server)
    task = (await claim(server))["task"]
    assert (await server.call("POST", f"/jobs/{task}/fail?exit_code=3")).status == 200
    assert (await claim(server, wait=60))["reservation_epoch"] == 2
    assert (await server.call("POST", f"/jobs/{task}/done")).status == 200


async def test_a_gang_with_agents_starts_when_they_have_accepted(server: Running) -> None:
    await a_worker(server, "plain")
    agent = {"id": "agent", "protocol": "sync", "incarnation": "i-1", "slots": 1}
    await server.call("POST", "/workers/register", agent)
    term = server.engine.term
    sync: dict[str, Any] = {"incarnation": "i-1", "seq": 1, "term": term, "full": True}
    assert (await server.call("POST", "/workers/agent/sync", sync)).status == 200
    made = await submit(server, {"command": "x", "gang_size": 2})
    job = made["gang_id"]
    await server.until(lambda c: c.gangs[job].count(State.RESERVED) == 2)
    assert (await server.call("GET", "/jobs/next?worker_id=plain")).status == 204
    told = (
        await server.call("POST", "/workers/agent/sync", {**sync, "seq": 2, "full": False})
    ).body
    [order] = told["tasks"]
    assert order["want"] == "prepare"
    report = {"id": order["id"], "attempt": order["attempt"], "state": "accepted"}
    sync |= {"seq": 3, "full": False, "tasks": [report]}
    told = (await server.call("POST", "/workers/agent/sync", sync)).body
    assert [order["want"] for order in told["tasks"]] == ["run"]
    assert (await claim(server, "plain"))["gang_id"] == job


async def test_full_workers_leave_a_job_to_another_runner(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in ("w-1", "w-2"):
        await a_worker(server, worker, slots=1)
        await submit(server)
    for worker in ("w-1", "w-2"):
        await claim(server, worker, wait=60)
    claims, attempts = server.services.claims, []
    attempt = claims._claim

    async def counted(call: Any, **options: bool) -> Any:
        attempts.append(call.worker)
        return await attempt(call, **options)

    monkeypatch.setattr(claims, "_claim", counted)
    full = [
        asyncio.create_task(server.call("GET", f"/jobs/next?worker_id={worker}&wait=60"))
        for worker in ("w-1", "w-2")
    ]
    while len(attempts) < 2:
        await asyncio.sleep(0)
    free = asyncio.create_task(claim(server, wait=60))
    while len(attempts) < 3:
        await asyncio.sleep(0)
    made = await submit(server)
    assert (await free)["gang_id"] == made["id"]
    await submit(server)
    assert (await server.call("GET", "/jobs")).status == 200
    assert len(attempts) <= 6
    for waiting in full:
        waiting.cancel()
    await asyncio.gather(*full, return_exceptions=True)


async def test_a_held_claim_is_woken_when_a_backoff_ends(server: Running) -> None:
    role = {"roles": {"w": {"command": "x"}}, "backoff": "300ms", "max_retries": 5}
    job = (await submit(server, role))["id"]
    await claim(server)
    assert (await server.call("POST", f"/jobs/{job}/fail")).status == 200
    assert (await claim(server, wait=60))["reservation_epoch"] == 2
    waiting = asyncio.create_task(claim(server, wait=60))
    while not server.services.claims._held:
        await asyncio.sleep(0)
    # The second failure has a backoff.
    assert (await server.call("POST", f"/jobs/{job}/fail")).status == 200
    assert (await waiting)["reservation_epoch"] == 3
