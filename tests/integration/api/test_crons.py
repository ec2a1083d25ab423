"""Crons over HTTP."""

from typing import Any

import pytest

from phalanx.core.handlers import crons
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from tests.integration.api.serving import Running, serving

#: Not due while a test runs, unless it runs on a leap day at midnight.
RARE = {"cron": "0 0 29 2 *"}
NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "schedule": RARE,
    "roles": {"report": {"command": "report"}},
}
PATH = "/crons/default/nightly"


async def test_a_job_with_a_schedule_creates_a_cron_that_survives_a_restart(store: Store) -> None:
    async with serving(store) as server:
        made = await server.call("POST", "/jobs", NIGHTLY)
        assert made.status == 201
        assert (made.body["name"], made.body["cron"]) == ("nightly", RARE["cron"])
        again = await server.call("POST", "/jobs", NIGHTLY)
        assert again.status == 200
        assert (await server.call("GET", "/jobs")).body["jobs"] == []
        await server.engine.resign()
    async with serving(store) as server:
        shown = (await server.call("GET", PATH)).body
        assert shown["spec"] == NIGHTLY
        assert shown["next_at"].endswith("-02-29T00:00:00.000000Z")
        assert (await server.call("GET", "/crons")).body == [shown]


async def test_a_requested_run_is_a_job(on_each_store: Running) -> None:
    server = on_each_store
    await server.call("POST", "/jobs", NIGHTLY)
    ran = await server.call("POST", f"{PATH}/run")
    assert ran.status == 201
    [run] = ran.body["runs"]
    job = (await server.call("GET", f"/jobs/{run['job']}")).body
    assert job["name"] == run["name"]
    assert job["name"].startswith("nightly-20")
    refused = await server.call("POST", f"{PATH}/run")
    assert refused.status == 409
    assert "forbids concurrent runs" in refused.body["error"]["message"]


async def test_a_run_that_draws_the_id_of_a_finished_job_is_refused_and_draws_again(
    on_each_store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = on_each_store
    finished = (await server.call("POST", "/jobs", {"command": "true"})).body["id"]
    await server.call("DELETE", f"/jobs/{finished}")
    await server.call("POST", "/jobs", NIGHTLY)
    draws = iter([finished])
    monkeypatch.setattr(crons, "_new_job_id", lambda tx: next(draws, "j-7kq2m4xd"))
    writer = server.writer
    refused = await server.call("POST", f"{PATH}/run")
    assert refused.status == 503
    assert f"another job has the id {finished}" in refused.body["error"]["message"]
    await server.lead(after=writer)
    [run] = (await server.call("POST", f"{PATH}/run")).body["runs"]
    assert run["job"] == "j-7kq2m4xd"
    assert (await server.call("GET", f"/jobs/{finished}")).body["phase"] == "cancelled"


async def test_a_replacing_run_is_shown_until_the_unfinished_run_has_stopped(
    on_each_store: Running,
) -> None:
    server = on_each_store
    await server.call("POST", "/workers/register", {"id": "w-1", "slots": 1})
    await server.call("POST", "/jobs", NIGHTLY | {"schedule": RARE | {"concurrency": "replace"}})
    assert "replacing_at" not in (await server.call("POST", f"{PATH}/run")).body
    task = (await server.call("GET", "/jobs/next?worker_id=w-1&wait=60")).body
    again = (await server.call("POST", f"{PATH}/run")).body
    assert again["replacing_at"] > again["last"]["due_at"]
    path = f"/jobs/{task['id']}/preempted?epoch={task['reservation_epoch']}"
    assert (await server.call("POST", path)).status == 200
    assert "replacing_at" not in (await server.call("GET", PATH)).body


async def test_runs_beyond_keep_are_removed_from_the_store(on_each_store: Running) -> None:
    server = on_each_store
    keep = {"done": 0, "failed": 0}
    await server.call("POST", "/jobs", NIGHTLY | {"schedule": RARE | {"keep": keep}})
    [run] = (await server.call("POST", f"{PATH}/run")).body["runs"]
    assert (await server.call("DELETE", f"/jobs/{run['job']}")).status == 200
    assert (await server.call("GET", f"/jobs/{run['job']}")).status == 404
    assert (await server.call("GET", PATH)).body["runs"] == []


async def test_a_cron_is_paused_resumed_and_removed(server: Running) -> None:
    await server.call("POST", "/jobs", NIGHTLY)
    paused = await server.call("POST", f"{PATH}/pause")
    assert (paused.body["paused"], paused.body["next_at"]) == (True, None)
    resumed = await server.call("POST", f"{PATH}/resume")
    assert resumed.body["next_at"] is not None
    assert (await server.call("DELETE", PATH)).status == 204
    assert (await server.call("GET", PATH)).status == 404
    assert (await server.call("POST", f"{PATH}/pause")).status == 404


async def test_in_a_batch_crons_and_jobs_may_be_mixed(server: Running) -> None:
    reply = await server.call("POST", "/jobs:batch", [NIGHTLY, {"command": "x"}])
    cron, job = reply.body["results"]
    assert cron["cron"]["name"] == "nightly"
    assert job["job"]["phase"] == "pending"


async def test_an_unknown_time_zone_is_refused_with_its_path(server: Running) -> None:
    schedule = RARE | {"timezone": "Mars/Olympus"}
    reply = await server.call("POST", "/jobs", NIGHTLY | {"schedule": schedule})
    assert reply.status == 400
    assert reply.body["error"]["details"][0]["path"] == "schedule.timezone"
    assert (await server.call("GET", "/crons")).body == []


async def test_a_question_about_a_cron_is_one_about_its_runs(server: Running) -> None:
    reply = await server.call("POST", "/plan", NIGHTLY)
    assert reply.status == 200
    assert (await server.call("GET", "/crons")).body == []


class _ByToken:
    """A token is the name of its user, and of the user's only namespace."""

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        return Principal(bearer or "", "user", (bearer or "",))


async def test_crons_of_other_namespaces_can_be_neither_seen_nor_changed() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=_ByToken()) as server:
        ada, bob = {"authorization": "Bearer ada"}, {"authorization": "Bearer bob"}
        made = await server.call("POST", "/jobs", NIGHTLY | {"namespace": "ada"}, **ada)
        assert made.body["owner"] == "ada"
        assert (await server.call("GET", "/crons", **bob)).body == []
        assert (await server.call("GET", "/crons?namespace=ada", **bob)).status == 403
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run")):
            reply = await server.call(method, f"/crons/ada/nightly{path}", **bob)
            assert reply.status == 404
        assert len((await server.call("GET", "/crons", **ada)).body) == 1
