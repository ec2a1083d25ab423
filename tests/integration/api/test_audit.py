"""The audit: every change leaves a record, refusals are counted, and nothing secret is in it."""

from typing import Any

import msgspec
import pytest

from phalanx.api.app import create_app
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal, Unauthorised
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import AuditQuery, Store
from tests.integration.api.serving import Running, serving

JOB = {"name": "train", "namespace": "ml", "roles": {"a": {"command": "true"}}}
CRON = {"name": "c", "schedule": {"cron": "0 0 1 1 *"}, "roles": {"a": {"command": "x"}}}
#: Reports and reads of workers, and what stores nothing: changing routes without an action.
NOT_AUDITED = {
    "/plan",
    "/queues/{name:str}/plan",
    "/policies/check",
    "/policies/test",
    "/jobs/{task:str}/checkpoint",
    "/jobs/{task:str}/checkpointed",
    "/jobs/{task:str}/done",
    "/jobs/{task:str}/fail",
    "/jobs/{task:str}/heartbeat",
    "/jobs/{task:str}/preempted",
    "/workers/{worker_id:str}/heartbeat",
    "/workers/{worker_id:str}/output",
    "/workers/{worker_id:str}/sync",
}


class People:
    """Ann is an admin, Bob a user of namespace ml."""

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        if bearer == "ann-secret":
            return Principal("ann", "admin")
        if bearer == "bob-secret":
            return Principal("bob", "user", ("ml",))
        raise Unauthorised("a token is required")


ANN = {"authorization": "Bearer ann-secret"}
BOB = {"authorization": "Bearer bob-secret"}


async def listed(server: Running, query: str = "", **headers: str) -> list[dict[str, Any]]:
    reply = await server.call("GET", f"/audit?{query}", **headers)
    assert reply.status == 200, reply
    records: list[dict[str, Any]] = reply.body["records"]
    return records


async def actions(server: Running, query: str = "") -> list[tuple[str, str, str]]:
    return [
        (record["action"], record["kind"], record["target"])
        for record in reversed(await listed(server, query))
    ]


async def test_every_change_leaves_a_record(on_each_store: Running) -> None:
    server = on_each_store
    job = (await server.call("POST", "/jobs", JOB, x_request_id="r-7")).body["id"]
    for action in ("hold", "release"):
        await server.call("POST", f"/jobs/{job}/{action}")
    await server.call("POST", f"/jobs/{job}/priority", {"priority": 3})
    await server.call("DELETE", f"/jobs/{job}")
    new = (await server.call("POST", f"/jobs/{job}/retry")).body["id"]
    await server.call("PUT", "/queues/lab", {"weight": 3})
    await server.call("POST", "/queues/lab/stop")
    await server.call("DELETE", "/queues/lab")
    await server.call("POST", "/workers/register", {"id": "w-1"})
    await server.call("POST", "/workers/w-1/cordon")
    await server.call("DELETE", "/workers/w-1")
    await server.call("POST", "/jobs", CRON)
    await server.call("POST", "/crons/default/c/pause")
    await server.call("GET", "/crons/default/c")
    assert await actions(server) == [
        ("submit", "job", job),
        ("hold", "job", job),
        ("release", "job", job),
        ("set priority", "job", job),
        ("cancel", "job", job),
        ("retry", "job", new),
        ("set queue", "queue", "lab"),
        ("stop queue", "queue", "lab"),
        ("remove queue", "queue", "lab"),
        ("register worker", "worker", "w-1"),
        ("cordon", "worker", "w-1"),
        ("remove worker", "worker", "w-1"),
        ("submit", "cron", "c"),
        ("pause cron", "cron", "c"),
    ]
    first = (await listed(server))[-1]
    assert (first["namespace"], first["remote"], first["outcome"]) == ("ml", "127.0.0.1", "done")
    assert (first["request_id"], first["role"], first["count"]) == ("r-7", "admin", 1)


async def test_a_repeated_request_is_recorded_once(server: Running) -> None:
    batch = [JOB, {"command": "x"}]
    for _ in range(3):
        await server.call("POST", "/jobs:batch", batch, idempotency_key="k")
        await server.call("POST", "/jobs", CRON | {"name": "d"}, idempotency_key="k2")
    recorded = await actions(server)
    assert [kind for _, kind, _ in recorded].count("job") == 2


async def test_refusals_are_recorded_with_the_code_and_who_was_refused(store: Store) -> None:
    async with serving(store, auth=People()) as server:
        for _ in range(40):
            await server.call("POST", "/jobs", JOB)
            await server.call("GET", "/workers/w-1", authorization="Bearer wrong")
        for _ in range(3):
            await server.call("PUT", "/queues/lab", {}, **BOB)
        await server.call("POST", "/jobs", JOB | {"namespace": "other"}, **BOB)
        await server.call("DELETE", "/jobs/j-nosuch", **BOB)
        assert (await server.call("GET", "/audit", **BOB)).status == 403
        records = {
            (one["principal"], one["action"], one["code"]): one
            for one in await listed(server, **ANN)
        }
        assert records["", "submit", "unauthorised"]["count"] == 40
        assert records["bob", "set queue", "forbidden"]["count"] == 3
        assert records["bob", "set queue", "forbidden"]["target"] == "lab"
        assert ("bob", "submit", "forbidden") in records
        assert records["bob", "cancel", "not_found"]["target"] == "j-nosuch"
        assert {one["outcome"] for one in records.values()} == {"refused"}


async def test_records_are_selected_and_paged(server: Running) -> None:
    for number in range(5):
        await server.call("PUT", f"/queues/q-{number}", {})
    assert [one["target"] for one in await listed(server, "limit=2")] == ["q-4", "q-3"]
    page = (await server.call("GET", "/audit?limit=2")).body
    rest = (await server.call("GET", f"/audit?limit=10&cursor={page['cursor']}")).body
    assert [one["target"] for one in rest["records"]] == ["q-2", "q-1", "q-0"]
    assert rest["cursor"] is None
    assert len(await listed(server, "target=q-1")) == 1
    assert await listed(server, "since=2999-01-01T00:00:00Z") == []
    assert len(await listed(server, "until=2999-01-01T00:00:00Z&principal=")) == 5
    for query, field in (("since=yesterday", "since"), ("cursor=x", "cursor")):
        reply = await server.call("GET", f"/audit?{query}")
        assert reply.body["error"]["details"][0]["path"] == field


async def test_no_secret_is_in_the_audit(server: Running) -> None:
    job = {"name": "s", "roles": {"a": {"command": "x", "env": {"KEY": "hunter2"}}}}
    await server.call("POST", "/jobs", job)
    made = await server.call("POST", "/tokens", {"name": "ada", "namespaces": ["ml"]})
    secret = made.body["secret"]
    await server.call("POST", "/tokens/ada/rotate")
    await server.call("DELETE", "/tokens/ada")
    page = await server.services.store.audit(AuditQuery(), limit=100)
    text = msgspec.json.encode(page).decode()
    assert [record.action for record in reversed(page.records)] == [
        "submit",
        "create token",
        "rotate token",
        "revoke token",
    ]
    assert secret not in text
    assert secret[:12] not in text
    assert "hunter2" not in text


async def test_every_route_that_changes_something_has_an_action() -> None:
    async with serving(MemoryStore(clock=wall_clock)) as server:
        routes = create_app(server.services).routes
        without = {
            route.path_format
            for route in routes
            for handler in getattr(route, "route_handlers", ())
            if {"POST", "PUT", "DELETE"} & set(handler.http_methods) and "action" not in handler.opt
        }
    expected = {path.replace(":str", "") for path in NOT_AUDITED}
    assert without - expected == set()


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_path_that_does_not_exist_is_not_recorded(server: Running, method: str) -> None:
    await server.call(method, "/nosuch/path")
    assert await listed(server) == []
