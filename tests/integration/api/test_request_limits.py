"""Clients that never finish, or never stop: each is refused alone, and the others are served."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from phalanx.host.clock import wall_clock
from phalanx.server import http_server, request_limits, tls_acceptor
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Running, serving
from tests.integration.api.test_tokens import Tokens
from tests.integration.raw_http import RawConnection

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
JOB = b'{"command": "true"}'
ROOT = b"Authorization: Bearer t-root\r\n"


Say = Callable[..., Awaitable[RawConnection]]


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(request_limits, "_FAREWELL_S", 0.1)
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as running:
        yield running


@pytest_asyncio.fixture
async def say(server: Running) -> AsyncIterator[Say]:
    """Opens a connection, sends some bytes on it, and closes it after the test."""
    opened: list[RawConnection] = []

    async def connect(*pieces: bytes) -> RawConnection:
        data = b"".join(pieces)
        connection = await RawConnection.to(server.url, data[:4096])
        opened.append(connection)
        await connection.send(data[4096:])
        return connection

    yield connect
    for connection in opened:
        await connection.close()


@pytest.fixture
def brief_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "PATIENCE_S", 0.3)


async def flood(connection: RawConnection, piece: bytes, count: int) -> None:
    """Send a piece over and over, or until the server closes."""
    with contextlib.suppress(ConnectionError):
        for _ in range(count):
            await connection.send(piece)


async def test_a_head_of_more_than_32_kib_is_refused(say: Say) -> None:
    large = b"X-Large: " + b"x" * (33 * 1024)
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(200))
    for head in (
        GET + large + b"\r\n\r\n",
        GET + large,  # not complete
        GET + many + b"\r\n",
        GET + b"a:\r\n" * 9000,
        b"GET /" + b"x" * (33 * 1024),
    ):
        connection = await say(head)
        reply = await connection.reply()
        assert (reply.status, reply.code) == (431, "head_too_large")
        assert await connection.closed()
    connection = await say(GET + b"X-Large: " + b"x" * (31 * 1024) + b"\r\n\r\n")
    assert (await connection.reply()).status == 200


async def test_an_endless_head_is_refused_when_it_is_too_large(say: Say) -> None:
    connection = await say(GET, b"X-Large: ")
    answered = asyncio.create_task(connection.reply())
    await flood(connection, b"x" * 65536, 256)
    assert (await answered).status == 431


@pytest.mark.usefixtures("brief_patience")
async def test_a_head_that_is_not_complete_in_time_is_refused(say: Say) -> None:
    for part in (b"G", GET, b"\r\n" + GET + b"X-Slow"):
        connection = await say(part)
        reply = await connection.reply()
        assert (reply.status, reply.code) == (408, "timeout")
    # Also the second one on a connection, which the keep-alive timeout does not cover.
    connection = await say(GET + b"\r\n")
    assert (await connection.reply()).status == 200
    await connection.send(b"G")
    assert (await connection.reply()).status == 408
    # A connection without a request is only closed: browsers open some in advance.
    assert await (await say()).closed()


@pytest.mark.usefixtures("brief_patience")
async def test_a_body_that_does_not_arrive_is_refused(say: Say) -> None:
    for head in (
        b"Content-Length: 100\r\n\r\n",
        b"Content-Length: 100\r\n\r\n{",
        b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
    ):
        connection = await say(POST + ROOT + head)
        reply = await connection.reply()
        assert (reply.status, reply.code) == (408, "timeout"), head
        assert await connection.closed()
    # Without a token there is an answer at once, and then no more patience than that.
    connection = await say(POST + b"Content-Length: 100\r\n\r\n{")
    assert (await connection.reply()).status == 401
    assert await connection.closed()


@pytest.mark.usefixtures("brief_patience")
async def test_a_held_call_is_not_slow(say: Say) -> None:
    claim = b"GET /jobs/next?wait=1 HTTP/1.1\r\nHost: localhost\r\n" + ROOT + b"\r\n"
    connection = await say(claim)
    assert (await connection.reply()).status == 204


async def test_chunks_carry_bodies_and_nothing_else(say: Say) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    job = b"%x;name=value\r\n%s\r\n" % (len(JOB), JOB)
    connection = await say(POST + ROOT + chunked + job + b"0\r\nX-Sum: 1\r\n\r\n")
    assert (await connection.reply()).status == 201
    # A trailer is not a header.
    await connection.send(POST + chunked + job + b"0\r\n" + ROOT + b"\r\n")
    assert (await connection.reply()).status == 401
    for endless in (b"1;" + b"x" * 65536, b"0\r\nX-Large: " + b"x" * 65536, b"1\r\n \r\n" * 20000):
        connection = await say(POST + ROOT + chunked)
        # The refusal is read while the rest is sent, which may break the connection.
        answered = asyncio.create_task(connection.reply())
        await flood(connection, endless, 16)
        reply = await answered
        assert (reply.status, reply.code) == (400, "invalid")


async def test_pipelined_requests_are_answered_in_order_up_to_a_limit(say: Say) -> None:
    connection = await say((GET + b"\r\n") * 8)
    assert [(await connection.reply()).status for _ in range(8)] == [200] * 8
    connection = await say((GET + b"\r\n") * 5000)
    await connection.closed()


async def test_a_request_to_change_the_protocol_is_answered_as_usual(say: Say) -> None:
    for protocol in (b"websocket", b"h2c"):
        connection = await say(GET + b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % protocol)
        assert (await connection.reply()).status == 200
        await connection.send(GET + b"\r\n")
        assert (await connection.reply()).status == 200
    tunnel = await say(b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await tunnel.reply()).status == 400


@pytest.fixture
def few_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_NEWCOMERS", 8)


async def test_connections_without_a_token_are_limited_and_the_others_stay(
    few_newcomers: None, server: Running, say: Say
) -> None:
    held = b"GET /jobs/next?wait=60 HTTP/1.1\r\nHost: localhost\r\n" + ROOT + b"\r\n"
    agents = [await say(held) for _ in range(12)]
    used = await say(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n" + ROOT + b"\r\n")
    assert (await used.reply()).status == 200
    silent = [await say(GET) for _ in range(30)]
    for connection in silent[:22]:
        assert await connection.closed()
    # An honest client gets in, although the limit is used up.
    assert (await server.call("GET", "/jobs", authorization="Bearer t-root")).status == 200
    await server.call("POST", "/jobs", {"command": "true"}, authorization="Bearer t-root")
    first, _ = await asyncio.wait(
        [asyncio.create_task(agent.reply()) for agent in agents],
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert first.pop().result().status == 200
    await used.send(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n" + ROOT + b"\r\n")
    assert (await used.reply()).status == 200


async def _no_app(scope: object, receive: object, send: object) -> None:
    """No request gets this far."""


async def test_a_tls_handshake_that_does_not_finish_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_acceptor, "PATIENCE_S", 0.3)
    server = http_server.HttpServer(_no_app, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    served = asyncio.create_task(server.serve(sockets=[listening]))
    connection = await RawConnection.to(f"https://127.0.0.1:{listening.getsockname()[1]}")
    try:
        await connection.send(b"\x16")  # the first byte of a handshake
        assert await connection.closed()
    finally:
        await connection.close()
        server.should_exit = True
        await served
