"""A worker sees and reports only what was placed on it, and nobody takes over its name."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from phalanx.api.services import Info
from phalanx.core.errors import Conflict
from phalanx.core.time_units import HOUR
from phalanx.host.clock import wall_clock
from phalanx.identity.token_changes import TokenChanges
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import TokenRequest, new_token
from phalanx.server.cluster_certificates import ClusterCertificates
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from phalanx.tls.authority import new_key, signing_request
from tests.integration.api.serving import Reply, Running, quick, serving

MARKER = "s3cr3t-of-another-worker"


class Cluster:
    """A server that requires tokens, and calls with them."""

    def __init__(self, server: Running, secrets: dict[str, str]) -> None:
        self.server = server
        self.secrets = secrets

    async def call(self, token: str, method: str, path: str, body: Any = None) -> Reply:
        secret = self.secrets.get(token, token)
        return await self.server.call(method, path, body, authorization=f"Bearer {secret}")

    async def join(self, worker: str, by: str = "join", own: str = "") -> Reply:
        self.secrets[worker] = own or f"secret of {worker}"
        body = {"id": worker, "credential": digest(self.secrets[worker])}
        return await self.call(by, "POST", "/workers/join", body)

    async def agent(self, worker: str, gpu: int = 1) -> None:
        """Join an agent, register it, and report that it runs nothing."""
        assert (await self.join(worker)).status == 200
        body = {
            "id": worker,
            "protocol": "sync",
            "incarnation": f"i-{worker}",
            "resources": {"gpu": gpu},
        }
        assert (await self.call(worker, "POST", "/workers/register", body)).status == 201
        first = await self.sync(worker, seq=1)
        assert (await self.sync(worker, seq=2, term=first.body["term"], full=True)).status == 200

    async def sync(self, worker: str, by: str = "", **fields: Any) -> Reply:
        body = {"incarnation": f"i-{worker}", **fields}
        return await self.call(by or worker, "POST", f"/workers/{worker}/sync", body)

    async def submit(self, **fields: Any) -> str:
        reply = await self.call("root", "POST", "/jobs", fields)
        assert reply.status == 201, reply
        return str(reply.body["id"])


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


async def create(store: Store, **fields: Any) -> str:
    created = new_token(TokenRequest(**fields), wall_clock())
    assert await store.add_token(created.token)
    return created.secret


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    store = MemoryStore(clock=wall_clock)
    secrets = {
        "root": await create(store, name="root", role="admin"),
        "join": await create(store, name="join", role="join"),
        "plain-1": await create(store, name="plain-1", role="worker", workers="plain-1"),
        "rack7": await create(store, name="rack7", role="worker", workers="rack7-*"),
        "any": await create(store, name="any", role="worker", workers="*"),
    }
    registry = TokenRegistry(store, open_on_loopback=False)
    async with serving(store, auth=registry, tokens=registry) as server:
        yield Cluster(server, secrets)


async def test_an_agent_cannot_speak_for_another(cluster: Cluster) -> None:
    await cluster.agent("w-1")
    await cluster.agent("w-2", gpu=0)
    job = await cluster.submit(
        roles={"r": {"command": f"echo {MARKER}", "resources": {"gpu": 1}, "env": {"K": MARKER}}}
    )
    await cluster.server.until(lambda c: c.gangs[job].tasks[0].worker == "w-1")
    task = f"{job}.0"
    report: dict[str, Any] = {
        "tasks": [{"id": task, "attempt": 1, "state": "exited", "exit_code": 0}]
    }
    takeover = {"id": "w-1", "protocol": "sync", "incarnation": "i-evil"}
    for method, path, body in (
        ("POST", "/workers/w-1/sync", {"incarnation": "i-w-1", "seq": 9, **report}),
        ("POST", "/workers/register", takeover),
        ("POST", "/workers/w-1/heartbeat", None),
        ("POST", "/workers/w-1/credential", {"credential": digest("mine")}),
        ("POST", f"/workers/w-1/output?task={task}&attempt=1&offset=0", b"forged"),
        ("POST", f"/jobs/{task}/checkpoint?epoch=1", b"forged"),
        ("GET", f"/jobs/{task}/checkpoint", None),
        ("POST", f"/jobs/{task}/done?epoch=1", None),
        ("POST", f"/jobs/{task}/fail?epoch=1", None),
        ("POST", f"/jobs/{task}/heartbeat?epoch=1", None),
        ("GET", "/jobs/next?worker_id=w-1", None),
        *(("GET", path, None) for path in (f"/jobs/{job}", f"/jobs/{job}/tasks", f"/gangs/{job}")),
        *(("GET", path, None) for path in (f"/jobs/{job}/logs", "/jobs", "/workers", "/events")),
        ("DELETE", "/workers/w-1", None),
        ("POST", "/tokens", {"name": "evil", "role": "admin"}),
    ):
        reply = await cluster.call("w-2", method, path, body)
        assert (reply.status, reply.body["error"]["code"]) == (403, "forbidden"), (path, reply)
        assert MARKER not in str(reply.body)
    # In its own name it has nothing to report about that task, and no instructions.
    mine = await cluster.sync("w-2", seq=9, term=cluster.server.engine.term, **report)
    assert [each["want"] for each in mine.body["tasks"]] == ["forget"]
    output = f"/workers/w-2/output?task={task}&attempt=1&offset=0"
    assert (await cluster.call("w-2", "POST", output, b"forged")).status == 404
    shown = await cluster.call("root", "GET", f"/jobs/{job}")
    assert (shown.body["phase"], shown.body["tasks"][0]["worker"]) == ("starting", "w-1")


async def test_a_refused_request_is_recorded_with_the_worker_or_cron_asked_for(
    cluster: Cluster,
) -> None:
    await cluster.agent("w-1")
    await cluster.agent("w-2")
    assert (await cluster.join("w-1", own="another")).status == 409
    cluster.secrets["w-1"] = "secret of w-1"
    assert (await cluster.call("w-2", "POST", "/workers/register", {"id": "w-1"})).status == 403
    assert (await cluster.sync("w-1", by="w-2", seq=9)).status == 403
    assert (await cluster.call("w-2", "DELETE", "/crons/ml/nightly")).status == 403
    records = (await cluster.call("root", "GET", "/audit")).body["records"]
    refused = {
        one["action"]: (one["kind"], one.get("namespace", ""), one["target"])
        for one in records
        if one["outcome"] == "refused"
    }
    worker = ("worker", "", "w-1")
    assert refused == {
        "join": worker,
        "register worker": worker,
        "sync": worker,
        "remove cron": ("cron", "ml", "nightly"),
    }


async def test_a_join_with_an_unusable_csr_joins_nothing(cluster: Cluster) -> None:
    services = cluster.server.services
    certificates = ClusterCertificates(services.store, ["localhost"], structlog.get_logger())
    await certificates.refresh()
    services.certificates = certificates
    made = {"name": "once", "role": "join", "joins": 1}
    once = (await cluster.call("root", "POST", "/tokens", made)).body["secret"]
    wrong, right = signing_request(ec.generate_private_key(ec.SECP384R1())), new_key()

    async def send(path: str, secret: str, csr: str, **fields: str) -> Reply:
        body = {"credential": digest(secret), "csr": csr, **fields}
        return await cluster.call(
            once if path.endswith("join") else "root", "POST", f"/workers/{path}", body
        )

    for csr in (wrong, "nonsense"):
        refused = await send("join", "first", csr, id="w-1")
        assert (refused.status, refused.body["error"]["code"]) == (400, "invalid")
    joined = await send("join", "second", signing_request(right), id="w-1")
    assert joined.status == 200, joined  # with another secret, and with the only join of the token
    assert (await send("w-1/credential", "third", wrong)).status == 400
    [token] = [each for each in await services.store.tokens() if each.name == "worker:w-1"]
    assert (token.digest, token.next_digest) == (digest("second"), "")


async def test_a_name_that_has_joined_cannot_be_joined_by_another(cluster: Cluster) -> None:
    await cluster.agent("w-1")
    mine = cluster.secrets["w-1"]
    stolen = await cluster.join("w-1", own="another")
    assert (stolen.status, stolen.body["error"]["code"]) == (409, "conflict")
    assert "phalanx token revoke worker:w-1" in stolen.body["error"]["message"]
    assert (await cluster.join("w-1", own=mine)).status == 200  # the answer was lost
    assert (await cluster.call("root", "DELETE", "/tokens/worker:w-1")).status == 204
    refused = await cluster.sync("w-1", seq=9)
    assert (refused.status, refused.body["error"]["code"]) == (401, "revoked")
    assert (await cluster.join("w-1", own=mine)).status == 409
    assert (await cluster.join("w-1", own="new")).status == 200
    assert (await cluster.sync("w-1", seq=10)).status == 200


async def test_a_removed_worker_loses_its_credential(cluster: Cluster) -> None:
    await cluster.agent("w-1")
    assert (await cluster.call("root", "DELETE", "/workers/w-1")).status == 204
    body = {"id": "w-1", "protocol": "sync", "incarnation": "i-w-1"}
    refused = await cluster.call("w-1", "POST", "/workers/register", body)
    assert (refused.status, refused.body["error"]["code"]) == (401, "revoked")


async def test_a_worker_that_never_registered_can_be_removed_once(cluster: Cluster) -> None:
    assert (await cluster.join("w-1")).status == 200
    assert (await cluster.call("root", "DELETE", "/workers/w-1")).status == 204
    body = {"id": "w-1", "protocol": "sync", "incarnation": "i-w-1"}
    refused = await cluster.call("w-1", "POST", "/workers/register", body)
    assert (refused.status, refused.body["error"]["code"]) == (401, "revoked")
    assert (await cluster.call("root", "DELETE", "/workers/w-1")).status == 404
    assert (await cluster.call("root", "DELETE", "/workers/w-2")).status == 404


async def test_a_held_sync_of_a_revoked_worker_gets_no_instructions(cluster: Cluster) -> None:
    await cluster.agent("w-1")
    term = cluster.server.engine.term
    held = asyncio.ensure_future(cluster.sync("w-1", seq=5, term=term, wait=60))
    await cluster.server.until(lambda c: c.nodes["w-1"].inventoried)
    assert (await cluster.call("root", "DELETE", "/tokens/worker:w-1")).status == 204
    await cluster.submit(
        roles={"r": {"command": MARKER, "resources": {"gpu": 1}, "env": {"K": MARKER}}}
    )
    reply = await held
    assert (reply.status, reply.body["error"]["code"]) == (401, "revoked")


async def test_a_held_claim_of_a_revoked_token_gets_no_task(cluster: Cluster) -> None:
    plain = {"id": "plain-1", "resources": {"gpu": 1}, "slots": 1}
    assert (await cluster.call("plain-1", "POST", "/workers/register", plain)).status == 201
    path = "/jobs/next?worker_id=plain-1&wait=60"
    held = asyncio.ensure_future(cluster.call("plain-1", "GET", path))
    for _ in range(5):  # the claim was sent first, and is held by then
        await cluster.call("root", "GET", "/workers")
    assert (await cluster.call("root", "DELETE", "/tokens/plain-1")).status == 204
    job = await cluster.submit(roles={"r": {"command": MARKER, "resources": {"gpu": 1}}})
    assert (await held).status == 401
    assert (await cluster.call("root", "GET", f"/jobs/{job}")).body["phase"] != "running"


@pytest.mark.parametrize("ending", ["revoked", "expired"])
async def test_held_calls_and_silent_streams_end_with_their_token(ending: str) -> None:
    store, now = MemoryStore(clock=wall_clock), wall_clock()
    user = await create(store, name="ada", namespaces=("default",), lifetime=HOUR)
    worker = await create(store, name="any", role="worker", workers="*", lifetime=HOUR)
    registry = TokenRegistry(store, open_on_loopback=False, clock=lambda: now)
    info = Info(check_tokens_s=0.01, keepalive_s=3600.0)
    settings = quick(sync_wait_s=3600.0)
    async with serving(
        store, auth=registry, tokens=registry, info=info, settings=settings
    ) as server:
        cluster = Cluster(server, {"ada": user, "any": worker})
        fields = {"roles": {"r": {"command": "x", "resources": {"gpu": 1}}}}
        job = (await cluster.call("ada", "POST", "/jobs", fields)).body["id"]
        held = [
            asyncio.ensure_future(cluster.call(token, "GET", path))
            for token, path in (
                ("ada", "/events"),
                ("ada", f"/jobs/{job}/logs?follow=true"),
                ("any", "/jobs/next?wait=60"),
            )
        ]
        while not (
            server.services.claims._held
            and {registry.used_at("ada"), registry.used_at("any")} == {now}
        ):
            await asyncio.sleep(0)
        for _ in range(5):  # the calls were sent first, and are held by then
            await cluster.call("ada", "GET", "/workers")
        assert not any(each.done() for each in held)
        if ending == "revoked":
            for name in ("ada", "any"):
                await server.services.tokens.revoke(name)
        else:
            now += 2 * HOUR
        events, log, claim = await asyncio.gather(*held)
        assert (events.status, log, claim.status) == (200, Reply(200, b""), 401)


async def test_a_held_sync_ends_when_another_server_revokes_the_credential() -> None:
    store = MemoryStore(clock=wall_clock)
    secrets = {"join": await create(store, name="join", role="join")}
    registry, other = (TokenRegistry(store, open_on_loopback=False) for _ in range(2))
    settings = quick(sync_wait_s=3600.0)
    async with serving(store, auth=registry, tokens=registry, settings=settings) as server:
        cluster = Cluster(server, secrets)
        await cluster.agent("w-1")
        session, term = server.services.agent_sync._sessions["w-1"], server.engine.term
        calls = session.calls
        held = asyncio.ensure_future(cluster.sync("w-1", seq=5, term=term, wait=3600))
        while session.calls == calls:
            await asyncio.sleep(0)
        assert await TokenChanges(store, other).revoke_worker("w-1")
        await registry.refresh()
        reply = await held
        assert (reply.status, reply.body["error"]["code"]) == (401, "revoked")


async def test_a_join_token_is_limited_to_its_workers_and_its_number_of_joins(
    cluster: Cluster,
) -> None:
    limits = {"name": "few", "role": "join", "workers": "rack7-*", "joins": 1}
    created = await cluster.call("root", "POST", "/tokens", limits)
    assert created.status == 201, created
    cluster.secrets["few"] = created.body["secret"]
    assert (await cluster.join("w-9", "few")).status == 403
    assert (await cluster.join("rack7-1", "few")).status == 200
    over = await cluster.join("rack7-2", "few")
    assert (over.status, over.body["error"]["code"]) == (403, "forbidden")
    assert "no joins left" in over.body["error"]["message"]
    for path in ("/jobs", "/workers", "/workers/rack7-1/sync"):
        assert (await cluster.call("few", "GET", path)).status in (403, 405)


@pytest.mark.parametrize("by", ["rack7", "any"])
async def test_a_plain_worker_token_cannot_speak_for_other_workers(
    cluster: Cluster, by: str
) -> None:
    await cluster.agent("w-1")
    plain = {"id": "plain-1", "resources": {"gpu": 1}, "slots": 1}
    assert (await cluster.call("plain-1", "POST", "/workers/register", plain)).status == 201
    job = await cluster.submit(roles={"r": {"command": "x", "resources": {"gpu": 1}}})
    other = await cluster.submit(roles={"r": {"command": "x", "resources": {"gpu": 1}}})
    await cluster.server.until(
        lambda c: {c.gangs[each].tasks[0].worker for each in (job, other)} == {"plain-1", "w-1"}
    )
    placed = await cluster.server.engine.do(
        lambda turn: {turn.cluster.gangs[each].tasks[0].worker: each for each in (job, other)}
    )
    claimed = await cluster.call("plain-1", "GET", "/jobs/next?worker_id=plain-1")
    assert claimed.body["gang_id"] == placed["plain-1"]
    takeover = {"id": "w-1", "protocol": "plain"}
    attacks: list[tuple[str, str, Any]] = [
        ("POST", "/workers/register", takeover),
        ("POST", "/workers/register", {"id": "w-3", "protocol": "sync"}),
        ("POST", f"/jobs/{placed['w-1']}/done", None),
        ("POST", f"/jobs/{placed['w-1']}.0/done?epoch=1", None),
        ("POST", f"/jobs/{placed['w-1']}.0/checkpoint?epoch=1", b"forged"),
        ("GET", f"/jobs/{placed['w-1']}.0/checkpoint", None),
        ("POST", "/workers/w-1/sync", {"incarnation": "i-w-1", "seq": 9}),
    ]
    if by == "rack7":
        attacks += [
            ("GET", "/jobs/next", None),
            ("GET", "/jobs/next?worker_id=plain-1", None),
            ("POST", f"/jobs/{placed['plain-1']}/done?worker_id=rack7-1", None),
            ("POST", f"/jobs/{placed['plain-1']}.0/fail?epoch=1&worker_id=plain-1", None),
            ("POST", f"/jobs/{placed['plain-1']}.0/heartbeat", None),
            ("POST", "/workers/plain-1/heartbeat", None),
        ]
    for method, path, body in attacks:
        reply = await cluster.call(by, method, path, body)
        assert (reply.status, reply.body["error"]["code"]) == (403, "forbidden"), (path, reply)
    done = f"/jobs/{placed['plain-1']}/done?worker_id=plain-1"
    assert (await cluster.call("plain-1", "POST", done)).status == 200


async def test_a_renewed_credential_replaces_the_previous_one_when_it_is_used(
    cluster: Cluster,
) -> None:
    await cluster.agent("w-1")
    for _ in range(2):  # the answer was lost
        body = {"credential": digest("renewed")}
        assert (await cluster.call("w-1", "POST", "/workers/w-1/credential", body)).status == 200
    assert (await cluster.sync("w-1", seq=3)).status == 200
    assert (await cluster.sync("w-1", by="renewed", seq=4)).status == 200
    old = await cluster.sync("w-1", seq=5)
    assert (old.status, old.body["error"]["code"]) == (401, "unauthorised")
    assert (await cluster.sync("w-1", by="renewed", seq=6)).status == 200


async def test_tokens_are_created_listed_rotated_and_revoked_over_the_api(
    cluster: Cluster,
) -> None:
    body = {"name": "ada", "namespaces": ["ml"], "expires": "1d"}
    created = await cluster.call("root", "POST", "/tokens", body)
    assert (created.status, created.body["token"]["role"]) == (201, "user")
    first = created.body["secret"]
    assert (await cluster.call(first, "GET", "/jobs")).status == 200
    assert (await cluster.call("root", "POST", "/tokens", body)).status == 409
    rotated = (await cluster.call("root", "POST", "/tokens/ada/rotate")).body["secret"]
    assert (await cluster.call(first, "GET", "/jobs")).status == 200
    assert (await cluster.call(rotated, "GET", "/jobs")).status == 200
    assert (await cluster.call(first, "GET", "/jobs")).status == 401
    listed = await cluster.call("root", "GET", "/tokens")
    ada = next(each for each in listed.body if each["name"] == "ada")
    assert (ada["namespaces"], "used_at" in ada, "expires_at" in ada) == (["ml"], True, True)
    assert not any(secret in str(listed.body) for secret in (first, rotated, digest(rotated)))
    assert (await cluster.call("root", "DELETE", "/tokens/ada")).status == 204
    assert (await cluster.call(rotated, "GET", "/jobs")).status == 401
    assert (await cluster.call("root", "DELETE", "/tokens/ada")).status == 404
    for wrong in (
        {"name": "x", "role": "agent"},
        {"name": "worker:w-1", "role": "admin"},
        {"name": "x", "role": "worker"},
        {"name": "x", "role": "worker", "workers": "*x"},
        {"name": "x", "role": "admin", "joins": 2},
    ):
        assert (await cluster.call("root", "POST", "/tokens", wrong)).status == 400, wrong


async def test_the_last_admin_token_cannot_be_revoked(cluster: Cluster) -> None:
    async def revoked(name: str) -> tuple[int, str]:
        reply = await cluster.call("root", "DELETE", f"/tokens/{name}")
        return reply.status, "" if reply.status == 204 else reply.body["error"]["message"]

    tokens = (await cluster.call("root", "GET", "/tokens")).body
    [root] = [each["name"] for each in tokens if each["role"] == "admin"]
    soon = {"name": "soon", "role": "admin", "expires": "1h"}
    assert (await cluster.call("root", "POST", "/tokens", soon)).status == 201
    status, message = await revoked(root)
    assert status == 409
    assert f"token {root} is the last admin token that does not expire; create another" in message
    assert (await revoked("soon"))[0] == 204
    assert (await cluster.call("root", "POST", "/tokens", soon | {"name": "one"})).status == 201
    lasting = {"name": "two", "role": "admin"}
    assert (await cluster.call("root", "POST", "/tokens", lasting)).status == 201
    revoke = cluster.server.services.tokens.revoke
    both = await asyncio.gather(revoke("two"), revoke(root), return_exceptions=True)
    assert [type(each) for each in both] == [type(None), Conflict], "one of the two must remain"


async def test_a_stream_ends_with_the_token_of_its_reader(cluster: Cluster) -> None:
    body = {"name": "ada", "namespaces": ["default"]}
    secret = (await cluster.call("root", "POST", "/tokens", body)).body["secret"]
    headers = {"authorization": f"Bearer {secret}"}
    async with cluster.server.client.stream("GET", "/events", headers=headers) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == ": start of the stream"
        assert (await cluster.call("root", "DELETE", "/tokens/ada")).status == 204
        await cluster.submit(command=MARKER)
        assert not [line async for line in lines if "data" in line]
