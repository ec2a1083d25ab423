"""Requests to an API server on connections of their own, against a server of this test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import ConfiguredCredentials
from phalanx.kube.connection.errors import ConnectionConfigError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

TOKEN = "t"  # noqa: S105
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client_of(serve: Serve) -> AsyncIterator[ApiClient]:
    """A client of a server that handles each connection with this function."""
    ended: list[asyncio.Event] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(has_ended := asyncio.Event())
        with suppress(ConnectionError, EOFError):
            await serve(reader, writer)
            await reader.read()
        writer.close()
        has_ended.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    credentials = ConfiguredCredentials(token=TOKEN)
    async with server:
        async with ApiClient(ClusterConnection(url, credentials)) as client:
            yield client
        for each in ended:
            await each.wait()


async def request_on(reader: asyncio.StreamReader) -> bytes:
    """The head and the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head + await reader.readexactly(length)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_connection_is_used_again() -> None:
    requests: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(of_connection := [])
        for _ in range(2):
            of_connection.append(await request_on(reader))
            writer.write(OK)

    async with client_of(serve) as client:
        await client.request("POST", "/a", {"b": 1})
        await client.request("GET", "/c", params={"d": "e f"})
    [[first, second]] = requests
    assert first.startswith(b"POST /a HTTP/1.1\r\n")
    assert b"Authorization: Bearer t\r\n" in first
    assert first.endswith(b'\r\n\r\n{"b":1}')
    assert second.startswith(b"GET /c?d=e+f HTTP/1.1\r\n")


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("POST", False)])
async def test_only_a_read_is_repeated_when_a_used_connection_ends(
    method: str, is_repeated: bool
) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await request_on(reader)
        writer.write(OK)
        await request_on(reader)
        writer.close()  # without an answer: whether the request had an effect is unknown

    async with client_of(serve) as client:
        await client.request("GET", "/")
        if is_repeated:
            await client.request(method, "/", {})
        else:
            with pytest.raises(ApiUnreachableError, match="the connection was closed"):
                await client.request(method, "/", {})
    assert connections == 1 + is_repeated


async def test_an_answer_that_is_not_http_is_no_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_on(reader)
        writer.write(b"220 mail.example.org ESMTP\r\n")

    async with client_of(serve) as client:
        with pytest.raises(ApiUnreachableError, match="not HTTP"):
            await client.request("GET", "/")


async def test_a_watch_delivers_whole_lines_as_they_arrive() -> None:
    batches: list[list[bytes]] = []
    next_part = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_on(reader)
        writer.write(CHUNKED + chunk(b"one\ntw"))
        await next_part.wait()
        writer.write(chunk(b"o\nthree\n") + b"0\r\n\r\n")

    def take(lines: list[bytes]) -> None:
        batches.append(lines)
        next_part.set()

    async with client_of(serve) as client:
        await client.watch("/", {}, take)
    assert batches == [[b"one"], [b"two", b"three"]]


async def test_a_watch_ends_with_the_error_of_its_reader_and_with_a_refusal() -> None:
    answers = [CHUNKED + chunk(b"{}\n"), b"HTTP/1.1 410 Gone\r\nContent-Length: 2\r\n\r\n{}"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_on(reader)
        writer.write(answers.pop(0))

    def refuse(_: list[bytes]) -> None:
        raise LookupError

    async with client_of(serve) as client:
        with pytest.raises(LookupError):
            await client.watch("/", {}, refuse)
        with pytest.raises(ApiStatusError) as refused:
            await client.watch("/", {}, refuse)
    assert refused.value.is_gone


async def test_a_silent_watch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.kube.api.client.WATCH_SILENCE_S", 0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_on(reader)
        writer.write(CHUNKED)
        await reader.read()

    async with client_of(serve) as client:
        with pytest.raises(ApiUnreachableError, match="no answer in time"):
            await client.watch("/", {}, lambda _: None)


async def test_a_token_with_a_line_break_is_refused() -> None:
    credentials = ConfiguredCredentials(token=f"{TOKEN}\r\nX-Remote-User: admin")
    async with ApiClient(ClusterConnection("http://127.0.0.1:1", credentials)) as client:
        with pytest.raises(ConnectionConfigError, match="Authorization has a line break"):
            await client.request("GET", "/")
