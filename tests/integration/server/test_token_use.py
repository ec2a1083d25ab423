"""Tokens are made on the store, needed where others can reach, and noticed by a running server."""

import json
import socket
from pathlib import Path

import pytest

from tests.integration.server.processes import Start, phalanx, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.plain_http import async_http_client


async def create(store: str, *arguments: str) -> str:
    status, out, err = await phalanx("token", "create", *arguments, f"--store={store}")
    assert status == 0, err
    return out.strip()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_listening_beyond_loopback_requires_a_token_and_says_how_to_create_one(
    tmp_path: Path,
) -> None:
    store = sqlite_at(tmp_path)
    status, _, err = await phalanx("serve", f"--store={store}", "--host=0.0.0.0", "--port=0")
    assert status == 2
    assert f"phalanx token create admin --role admin --store '{store}'" in err
    assert "Traceback" not in err


async def test_a_reachable_server_refuses_requests_without_a_token(
    start: Start, tmp_path: Path
) -> None:
    store = sqlite_at(tmp_path)
    token = await create(store, "root", "--role=admin")
    server = await start(store, "open", "--host=0.0.0.0")
    await server.line("leading")
    port = server.url.rpartition(":")[2]
    async with async_http_client(f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/healthz")).status_code == 200
        for headers in ({}, bearer("phx_wrong"), bearer(token[:-1])):
            answer = await client.get("/jobs", headers=headers)
            assert answer.status_code == 401, headers
        assert (await client.get("/jobs", headers=bearer(token))).status_code == 200


async def test_a_caller_cannot_give_itself_another_address_in_the_audit(
    start: Start, tmp_path: Path
) -> None:
    store = sqlite_at(tmp_path)
    token = await create(store, "root", "--role=admin")
    server = await start(store, "only")
    await server.line("leading")
    async with async_http_client(server.url, headers=bearer(token)) as client:
        forged = {"X-Forwarded-For": "203.0.113.9"}
        submitted = await client.post("/jobs", json={"command": "true"}, headers=forged)
        assert submitted.status_code == 201
        records = (await client.get("/audit")).json()["records"]
    [remote] = [each["remote"] for each in records if each["kind"] == "job"]
    assert remote == "127.0.0.1"


async def test_loopback_needs_a_token_if_the_operator_wants_it(
    start: Start, tmp_path: Path
) -> None:
    server = await start(sqlite_at(tmp_path), "only", "--loopback-open=false")
    await server.line("leading")
    async with async_http_client(server.url) as client:
        assert (await client.get("/jobs")).status_code == 401


async def test_a_running_server_notices_new_and_revoked_tokens(
    start: Start, tmp_path: Path
) -> None:
    store = sqlite_at(tmp_path)
    server = await start(store, "only", "--loopback-open=false")
    await server.line("leading")
    token = await create(store, "ada", "--namespace=ml")
    async with async_http_client(server.url, headers=bearer(token)) as client:

        async def status() -> int:
            return (await client.get("/jobs")).status_code

        async def is_let_in() -> bool:
            return await status() == 200

        async def is_kept_out() -> bool:
            return await status() == 401

        await eventually(is_let_in, PATIENCE_S)
        code, _, err = await phalanx("token", "revoke", "ada", f"--store={store}")
        assert code == 0, err
        await eventually(is_kept_out, PATIENCE_S)


async def test_tokens_are_listed_without_being_shown(tmp_path: Path) -> None:
    store = sqlite_at(tmp_path)
    secrets = [
        await create(store, "ada", "--namespace=ml", "--namespace=web"),
        await create(store, "w-1", "--role=worker", "--worker=w-1"),
    ]
    _, out, _ = await phalanx("token", "list", f"--store={store}")
    lines = [line.split()[:3] for line in out.splitlines()[1:]]
    assert lines == [["ada", "user", "ml,web"], ["w-1", "worker", "w-1"]]
    assert not any(secret in out for secret in secrets)
    _, out, _ = await phalanx("token", "list", "--json", f"--store={store}")
    [ada, worker] = json.loads(out)
    assert ada["namespaces"] == ["ml", "web"]
    assert secrets[1].startswith(worker["prefix"])
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(secret.encode() in kept for secret in secrets)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "x", "--role=king"), "write user, worker, join or admin"),
        (("create", "x"), "a user token needs one"),
        (
            ("create", "x", "--role=worker", "--worker=x", "--namespace=a"),
            "namespaces does not apply to a token of role worker",
        ),
        (("create", "ada", "--role=admin"), "phalanx token revoke ada"),
        (("revoke", "nobody"), "there is no token nobody"),
    ],
)
async def test_invalid_token_commands_are_refused_with_a_cure(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    store = sqlite_at(tmp_path)
    await create(store, "ada", "--role=admin")
    status, out, err = await phalanx("token", *arguments, f"--store={store}")
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


async def test_a_memory_store_keeps_no_tokens() -> None:
    status, _, err = await phalanx("token", "list", "--store=memory")
    assert status == 2
    assert "memory" in err
    status, _, err = await phalanx("serve", "--store=memory", f"--host={socket.gethostname()}")
    assert status == 2
    assert "memory" in err or "cannot listen" in err
