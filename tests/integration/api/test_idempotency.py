"""Idempotency keys: a repeated request is carried out once, and another request is refused."""

from typing import Any

import pytest

from phalanx.host.clock import wall_clock
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import TokenRequest, new_token
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from tests.compliance.backends import Backend
from tests.integration.api.serving import Reply, Running, serving

JOB = {"name": "nightly", "roles": {"a": {"command": "true"}}}
CRON = {"name": "c", "schedule": {"cron": "0 0 1 1 *"}, "roles": {"a": {"command": "x"}}}


async def test_a_key_with_another_job_is_refused_and_names_the_first(
    on_each_store: Running,
) -> None:
    server = on_each_store
    first = await server.call("POST", "/jobs", JOB, idempotency_key="k")
    other = await server.call("POST", "/jobs", {"command": "false"}, idempotency_key="k")
    assert (other.status, other.body["error"]["code"]) == (409, "key_reused")
    assert other.body["error"]["message"] == (
        f"idempotency key k was used for another request, which created job {first.body['id']};"
        " send a new key with this request, or repeat the first request unchanged"
    )
    # The order of fields and the form of the body do not matter.
    yaml = b"roles: {a: {command: 'true'}}\nname: nightly\n"
    again = await server.call(
        "POST", "/jobs", yaml, idempotency_key="k", content_type="application/yaml"
    )
    assert (again.status, again.body["id"]) == (200, first.body["id"])
    assert len((await server.call("GET", "/jobs")).body["jobs"]) == 1


async def test_a_key_is_for_one_action_on_one_object_with_its_options(server: Running) -> None:
    async def send(path: str, key: str, body: Any = None) -> Reply:
        return await server.call("POST", path, body, idempotency_key=key)

    jobs = []
    for key in ("a", "b"):
        jobs.append((await send("/jobs", key, {"command": "true"})).body["id"])
        await server.call("DELETE", f"/jobs/{jobs[-1]}")
    first = await send(f"/jobs/{jobs[0]}/retry", "retry")
    assert first.status == 201
    for path, key, body in (
        (f"/jobs/{jobs[0]}/retry", "a", None),
        (f"/jobs/{jobs[1]}/retry", "retry", None),
        (f"/jobs/{first.body['id']}/requeue", "retry", None),
        ("/jobs?ignore_image=true", "a", {"command": "true"}),
        ("/jobs?ignore_unsupported=true", "a", {"command": "true"}),
        ("/jobs:batch", "a", [{"command": "true"}]),
    ):
        other = await send(path, key, body)
        assert (other.status, other.body["error"]["code"]) == (409, "key_reused"), path
    again = await send(f"/jobs/{jobs[0]}/retry", "retry")
    assert (again.status, again.body["id"]) == (200, first.body["id"])
    same = await send("/jobs?ignore_image=false", "a", {"command": "true"})
    assert (same.status, same.body["id"]) == (200, jobs[0])


async def test_a_new_token_of_an_old_name_has_keys_of_its_own() -> None:
    store = MemoryStore(clock=wall_clock)
    root = new_token(TokenRequest(name="root", role="admin"), wall_clock())
    await store.add_token(root.token)
    registry = TokenRegistry(store, open_on_loopback=False)
    async with serving(store, auth=registry, tokens=registry) as server:

        async def submit_with_a_new_token(namespace: str) -> Reply:
            request = {"name": "ada", "namespaces": [namespace]}
            made = await server.call(
                "POST", "/tokens", request, authorization=f"Bearer {root.secret}"
            )
            job, bearer = JOB | {"namespace": namespace}, f"Bearer {made.body['secret']}"
            return await server.call(
                "POST", "/jobs", job, idempotency_key="k", authorization=bearer
            )

        assert (await submit_with_a_new_token("secret")).status == 201
        await server.call("DELETE", "/tokens/ada", authorization=f"Bearer {root.secret}")
        other = await submit_with_a_new_token("ml")
        assert (other.status, other.body["namespace"]) == (201, "ml")


async def test_a_request_that_was_refused_has_not_used_its_key(server: Running) -> None:
    wrong = await server.call("POST", "/jobs", JOB | {"queue": "no"}, idempotency_key="k")
    assert wrong.status == 400
    assert (await server.call("POST", "/jobs", JOB, idempotency_key="k")).status == 201


async def test_a_key_survives_the_leader(store: Store, backend: Backend) -> None:
    async with serving(store) as server:
        first = await server.call("POST", "/jobs", JOB, idempotency_key="k")
        await server.engine.resign()
    await store.close()
    second = backend.handle()
    await second.open()
    async with serving(second) as server:
        again = await server.call("POST", "/jobs", JOB, idempotency_key="k")
        assert (again.status, again.body["id"]) == (200, first.body["id"])
        other = await server.call("POST", "/jobs", JOB | {"priority": 1}, idempotency_key="k")
        assert other.body["error"]["code"] == "key_reused"
    await second.close()


async def test_a_file_that_is_repeated_submits_nothing_and_sets_no_queue(server: Running) -> None:
    file = b"kind: Queue\nname: lab\nweight: 3\n---\nname: a\nroles: {a: {command: x}}\n"

    async def send() -> Reply:
        return await server.call(
            "POST", "/jobs", file, idempotency_key="k", content_type="application/yaml"
        )

    first = await send()
    await server.call("PUT", "/queues/lab", {"weight": 9})
    again = await send()
    assert (first.status, again.status) == (201, 200)
    assert first.body["results"][0]["job"]["id"] == again.body["results"][0]["job"]["id"]
    assert (await server.call("GET", "/queues/lab")).body["weight"] == 9


async def _retry(server: Running) -> str:
    job = (await server.call("POST", "/jobs", JOB)).body["id"]
    await server.call("DELETE", f"/jobs/{job}")
    return f"/jobs/{job}/retry"


async def _run_cron(server: Running) -> str:
    await server.call("POST", "/jobs", CRON)
    return "/crons/default/c/run"


@pytest.mark.parametrize("prepare", [_retry, _run_cron])
async def test_a_repeated_action_submits_one_job(on_each_store: Running, prepare: Any) -> None:
    server = on_each_store
    path = await prepare(server)

    async def jobs() -> int:
        return len((await server.call("GET", "/jobs?finished=false")).body["jobs"])

    before = await jobs()
    for _ in range(3):
        reply = await server.call("POST", path, idempotency_key="k")
        assert reply.status in (200, 201), reply
    assert await jobs() == before + 1


@pytest.mark.parametrize("kind", ["workers", "queues", "crons"])
async def test_a_repeated_removal_does_not_remove_a_new_object(server: Running, kind: str) -> None:
    async def create() -> str:
        if kind == "workers":
            await server.call("POST", "/workers/register", {"id": "w-1"})
            return "/workers/w-1"
        if kind == "queues":
            await server.call("PUT", "/queues/lab", {})
            return "/queues/lab"
        await server.call("POST", "/jobs", CRON)
        return "/crons/default/c"

    path = await create()
    assert (await server.call("DELETE", path, idempotency_key="k")).status == 204
    assert (await server.call("DELETE", path)).status == 404
    assert (await server.call("DELETE", path, idempotency_key="k")).status == 204
    await create()
    assert (await server.call("DELETE", path, idempotency_key="k")).status == 204
    listed = (await server.call("GET", f"/{kind}")).body
    assert [each for each in listed if "w-1" in str(each) or "lab" in str(each) or kind == "crons"]
    assert (await server.call("DELETE", path, idempotency_key="k2")).status == 204


async def test_a_repeated_requeue_does_not_stop_the_next_attempt(server: Running) -> None:
    job = (await server.call("POST", "/jobs", JOB)).body["id"]
    await server.call("POST", "/workers/register", {"id": "w-1"})
    claim = await server.call("GET", "/jobs/next?worker_id=w-1&wait=60")
    assert claim.status == 200
    first = await server.call("POST", f"/jobs/{job}/requeue", idempotency_key="k")
    assert first.status == 200
    epoch = claim.body["reservation_epoch"]
    await server.call("POST", f"/jobs/{job}.0/preempted?epoch={epoch}")
    assert (await server.call("GET", "/jobs/next?worker_id=w-1&wait=60")).status == 200
    again = await server.call("POST", f"/jobs/{job}/requeue", idempotency_key="k")
    assert (again.status, again.body["phase"]) == (200, "running")
