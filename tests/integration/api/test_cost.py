"""Lost compute over HTTP: on the job, by queue, by evictor, and after a restart."""

from typing import Any

from msgspec.structs import replace

from phalanx.core.settings import CoreSettings
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from tests.integration.api.serving import Running, quick, serving

#: So dear that a moment costs something.
DEAR = quick(core=replace(CoreSettings(), price={"gpu": 10**15}))
JOB = {"name": "train", "roles": {"worker": {"command": "train", "resources": {"gpu": 1}}}}


async def evicted(server: Running) -> dict[str, Any]:
    """A job that ran and had to give way, as it is shown."""
    await server.call("POST", "/workers/register", {"id": "w-1", "resources": {"gpu": 1}})
    made = await server.call("POST", "/jobs", JOB)
    job = made.body["id"]
    claimed = await server.call("GET", "/jobs/next?worker_id=w-1&wait=60")
    assert claimed.status == 200
    assert (await server.call("POST", f"/jobs/{job}/requeue")).status == 200
    assert (await server.call("POST", f"/jobs/{job}.0@1/preempted")).status == 200
    shown: dict[str, Any] = (await server.call("GET", f"/jobs/{job}")).body
    return shown


async def test_an_eviction_is_recorded_on_the_job_and_in_the_totals_and_survives_a_restart(
    store: Store,
) -> None:
    async with serving(store, settings=DEAR) as server:
        lost = (await evicted(server))["lost"]
        assert lost["gpu_s"] >= 0
        assert lost["cost"] > 0
        [eviction] = lost["evictions"]
        assert eviction["by"] == "operator"
        assert eviction["cost"] == lost["cost"] == lost["to_eviction"]["cost"]
        before = (await server.call("GET", "/cost")).body
        await server.engine.resign()
    async with serving(store, settings=DEAR) as server:
        found = (await server.call("GET", "/cost")).body
    assert found == before
    assert found["price"] == {"gpu": 1e9}
    assert found["to_eviction"] == lost["to_eviction"]
    assert found["to_failure"]["count"] == 0
    assert [(line["queue"], line["to_eviction"]) for line in found["queues"]] == [
        ("default", lost["to_eviction"])
    ]
    assert [(line["name"], line["lost"]["cost"]) for line in found["jobs"]] == [
        ("default/train", lost["cost"])
    ]
    assert [(line["by"], line["lost"]["cost"]) for line in found["evictors"]] == [
        ("operator", lost["cost"])
    ]


async def test_a_job_without_lost_work_shows_zero(server: Running) -> None:
    made = await server.call("POST", "/jobs", JOB)
    lost = (await server.call("GET", f"/jobs/{made.body['id']}")).body["lost"]
    assert (lost["gpu_s"], lost["cost"], lost["evictions"]) == (0, 0, [])


class _Other:
    """Requests without a token come from a user of another namespace."""

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        return Principal("bob", "user", ("other",)) if bearer is None else Principal("", "admin")


async def test_names_of_other_namespaces_are_left_out() -> None:
    async with serving(MemoryStore(clock=wall_clock), settings=DEAR, auth=_Other()) as server:
        server.client.headers["authorization"] = "Bearer x"
        await evicted(server)
        del server.client.headers["authorization"]
        found = (await server.call("GET", "/cost")).body
    assert (found["jobs"], found["evictors"]) == ([], [])
    assert found["to_eviction"]["count"] == 1
