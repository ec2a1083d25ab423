"""Dependencies by name: which job a name means, and what a caller may learn from it."""

from typing import Any

import pytest

from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal, Unauthorised
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Reply, Running, serving

pytestmark = pytest.mark.asyncio

PRINCIPALS = {"ann": Principal("ann", "user", ("a",)), "root": Principal("root", "admin")}


class Tokens:
    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        if bearer not in PRINCIPALS:
            raise Unauthorised
        return PRINCIPALS[bearer]


async def submit(server: Running, by: str = "root", **fields: Any) -> Reply:
    body = {"namespace": "a", "roles": {"w": {"command": "x"}}} | fields
    return await server.call("POST", "/jobs", body, authorization=f"Bearer {by}")


async def after_of(server: Running, reply: Reply) -> list[Any]:
    assert reply.status == 201, reply
    path = f"/jobs/{reply.body['id']}"
    found = await server.call("GET", path, authorization="Bearer root")
    return [each["id"] for each in found.body.get("after", [])]


async def test_a_name_means_the_unfinished_job_and_otherwise_the_newest() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        old = (await submit(server, name="train")).body["id"]
        await server.call("DELETE", f"/jobs/{old}", authorization="Bearer root")
        assert await after_of(server, await submit(server, afterany=["train"])) == [old]
        failed = await submit(server, after=["a/train"])
        assert failed.body["phase"] == "failed"
        new = (await submit(server, name="train")).body["id"]
        assert await after_of(server, await submit(server, after=["train", new])) == [new]
        assert await after_of(server, await submit(server, namespace="b", after=["a/train"])) == [
            new
        ]


async def test_a_file_can_name_a_job_above_in_the_same_file() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        file = (
            b"namespace: a\nname: train\nroles: {w: {command: x}}\n---\n"
            b"namespace: a\nname: evaluate\nafter: [train]\nroles: {w: {command: y}}\n"
        )
        reply = await server.call(
            "POST", "/jobs", file, authorization="Bearer root", content_type="application/yaml"
        )
        train, evaluate = (each["job"] for each in reply.body["results"])
        found = await server.call("GET", f"/jobs/{evaluate['id']}", authorization="Bearer root")
        assert [each["id"] for each in found.body["after"]] == [train["id"]]
        assert found.body["reason"]["message"].startswith(f"runs after {train['id']}")


async def test_names_that_do_not_exist_or_may_not_be_seen_are_refused_alike() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        await submit(server, namespace="b", name="hidden")
        for name in ("b/hidden", "b/nothing"):
            reply = await submit(server, by="ann", afternotok=[name])
            assert (reply.status, reply.body["error"]["details"]) == (
                400,
                [{"path": "afternotok[0]", "message": f"is {name}, which does not exist"}],
            )
        reply = await submit(server, by="ann", after=["hidden"])
        assert "is hidden, which does not exist" in str(reply.body)
