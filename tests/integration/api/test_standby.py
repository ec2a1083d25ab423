"""A standby names the leader, or says that there is none."""

from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryDatabase, MemoryStore
from tests.integration.api.serving import serving
from tests.integration.api.test_jobs import submit


async def test_a_standby_redirects_every_request_to_the_leader() -> None:
    database = MemoryDatabase()
    leading = MemoryStore(clock=wall_clock, database=database)
    following = MemoryStore(clock=wall_clock, database=database)
    async with (
        serving(leading) as leader,
        serving(following, leads=False) as standby,
    ):
        job = await submit(leader)
        while (found := await standby.client.get("/jobs")).status_code == 503:
            assert found.headers["retry-after"]
        assert found.status_code == 307
        probe = await standby.client.get("/readyz")
        assert (probe.status_code, probe.json()["leading"]) == (503, False)
        for method, path in (
            ("GET", f"/gangs/{job['id']}?a=b%20c&d"),
            ("POST", "/jobs/j-0.1/done?epoch=3"),
            ("GET", "/jobs/next?worker_id=w%2F1"),
            ("GET", "/jobs/a%20b"),
            ("GET", "/events?since=3"),
            ("GET", f"/jobs/{job['id']}/logs?follow=true"),
            ("POST", f"/workers/w-1/output?task={job['id']}.0&attempt=1&offset=0"),
        ):
            reply = await standby.client.request(method, path)
            assert reply.status_code == 307, path
            assert reply.headers["location"] == leader.url + path
            assert reply.json()["error"]["code"] == "not_leading"
        sync = {"incarnation": "i", "seq": 1}
        reply = await standby.client.post("/workers/w/sync", json=sync)
        assert reply.headers["location"] == f"{leader.url}/workers/w/sync"
        reply = await standby.client.post("/jobs", json={"command": "x"}, follow_redirects=True)
        assert reply.status_code == 201
        for path in ("/health", "/healthz"):
            health = (await standby.client.get(path)).json()
            assert (health["status"], health["leading"]) == ("ok", False)


async def test_without_a_leader_requests_are_answered_with_retry_after() -> None:
    store = MemoryStore(clock=wall_clock)
    async with serving(store) as server:
        await server.engine.stop()
        reply = await server.client.get("/jobs")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_leader")
        assert reply.headers["retry-after"] == "1"
