"""Requests below the size limit that cost much: refused or read aside, and other calls go on."""

import asyncio
import json

import pytest

from phalanx.api import input_reader
from phalanx.host.clock import wall_clock
from phalanx.manifest import documents, reader_process
from phalanx.manifest.reader import InputKind, ReadRequest, encode
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Running, serving
from tests.integration.server.waiting import PATIENCE_S

ROLES = json.dumps({"roles": {f"r{n}": {"command": "a"} for n in range(15_000)}}).encode()
DOCUMENTS = b"---\ncommand: a\n" * 50_000
#: 4 KB that stand for 90,000 values.
ALIASES = b"a: &a [%s]\nb: [%s]\n" % (b"x," * 900, b"*a," * 100)
NESTED = b"[" * 500_000
NUMBERS = b"- " + b"9" * 900_000
YAML = {"content_type": "application/yaml"}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads may be suspended for a while."""
    monkeypatch.setattr(input_reader, "_READ_S", PATIENCE_S)


REFUSALS = {
    ROLES: "roles has 15000 roles; a job has at most 1000",
    DOCUMENTS: "more than 500 documents; split the file",
    ALIASES: "is not a known field",
    NESTED: "more than 64 levels of nesting",
    NUMBERS: "a job is a mapping with roles",
}


@pytest.mark.parametrize("path", ["/jobs", "/jobs:batch", "/plan", "/queues"])
async def test_a_costly_request_is_refused_and_not_read_by_the_server_itself(
    server: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server's own process read would hold up every other call."""
    read_here: list[bytes] = []
    monkeypatch.setattr(documents, "read", lambda data, **_: read_here.append(data))
    method = "PUT" if path == "/queues" else "POST"
    for body, message in REFUSALS.items():
        reply = await server.call(method, path, body, **YAML)
        assert message in json.dumps(reply.body)
        assert reply.status in (200, 400)
    assert not read_here


async def test_a_large_request_that_is_valid_is_accepted_whole(server: Running) -> None:
    jobs = [{"command": "true", "gang_size": 2}] * 300
    one = await server.call("POST", "/jobs", jobs)
    assert (one.status, one.body["accepted"]) == (201, 300)
    each = await server.call("POST", "/jobs:batch", [*jobs, {"command": 7}])
    assert (each.status, each.body["accepted"], each.body["refused"]) == (200, 300, 1)
    assert "command" in each.body["results"][300]["error"]["message"]


async def test_a_reader_that_takes_too_long_is_killed_and_replaced(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"command": "true"}] * 300
    assert (await server.call("POST", "/jobs", jobs)).status == 201  # it runs
    with monkeypatch.context() as patch:
        patch.setattr(input_reader, "_READ_S", 0.0)
        slow = await server.call("POST", "/jobs", jobs)
    assert slow.status == 400
    assert "takes too much time" in slow.body["error"]["message"]
    assert (await server.call("POST", "/jobs", jobs)).status == 201


async def test_a_reader_is_kept_when_the_server_itself_uses_much_memory() -> None:
    ballast = b"x" * 2 * reader_process.KEPT_BYTES
    reader = input_reader.ReaderProcess(2**30)
    question = encode(ReadRequest(InputKind.DOCUMENTS, b"a: 1", 1000))
    for _ in range(2):
        await reader.ask(question, "ada")
        assert reader._process is not None
    reader.stop()
    assert ballast


async def test_a_reader_has_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_reader, "_BASE_BYTES", 36 * 1024 * 1024)
    monkeypatch.setattr(input_reader, "_PER_BYTE", 0)
    async with serving(MemoryStore(clock=wall_clock)) as server:
        reply = await server.call("POST", "/jobs", b"[" + b"[]," * 330_000 + b"[]]")
        assert reply.status == 400
        assert "takes too much memory" in reply.body["error"]["message"]
        assert (await server.call("GET", "/healthz")).status == 200


async def test_one_caller_cannot_take_every_place_in_the_line(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_reader, "_MOST_OF_ONE", 2)
    jobs = [{"command": "true"}] * 300
    async with asyncio.timeout(PATIENCE_S):
        replies = await asyncio.gather(*(server.call("POST", "/plan", jobs) for _ in range(12)))
    codes = {reply.status for reply in replies}
    assert codes == {400, 429}  # one job at a time is planned; the others were not read
    refused = next(reply for reply in replies if reply.status == 429)
    assert "large requests of this caller" in refused.body["error"]["message"]
