"""A server in this process on a port of its own, and clients that speak to it over the network."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec.structs import replace

from phalanx.api.app import create_routes, with_services
from phalanx.api.auth import Authenticator
from phalanx.api.services import Info, Services
from phalanx.core.cluster import Cluster
from phalanx.core.time_units import Micros
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.host import HostEnvironment
from phalanx.engine.settings import EngineSettings
from phalanx.engine.turn import Turn
from phalanx.engine.writer import Writer
from phalanx.host.clock import wall_clock
from phalanx.identity.token_registry import TokenRegistry
from phalanx.server.http_server import HttpServer
from phalanx.store.protocol import Store
from tests.integration.server.waiting import PATIENCE_S
from tests.plain_http import async_http_client

#: Shared by the servers of all tests: creating the routes takes longer than most tests.
_routes = cache(create_routes)


class Reply(NamedTuple):
    status: int
    body: Any


class Running:
    """One server with its engine."""

    def __init__(self, engine: Engine, services: Services, url: str) -> None:
        self.engine = engine
        self.services = services
        self.url = url
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)
        self.client = async_http_client(url)
        self._changed = asyncio.Event()
        engine.observers.append(self._observe)

    def _observe(self, turn: Turn) -> None:
        if turn.changes:
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, holds: Callable[[Cluster], Any]) -> None:
        """Wait until this is true of the cluster."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                changed = self._changed
                if await self.engine.do(lambda turn: holds(turn.cluster)):
                    return
                await changed.wait()

    async def lead(self, after: Writer | None = None) -> None:
        """Wait until it leads, with another writer than one whose commit has failed."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.engine.is_leading or self.writer is after:
                await asyncio.sleep(0)

    @property
    def writer(self) -> Writer:
        term = self.engine._leadership.term
        assert term is not None
        assert term.writer is not None
        return term.writer

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass for workers and runners that are silent."""
        self.writer.losses.add_pause(-seconds)
        self.writer._arrived.set()

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """JSON in, JSON out."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        if body is not None and not isinstance(body, bytes):
            named.setdefault("content-type", "application/json")
        reply = await self.client.request(method, path, content=content, headers=named)
        return Reply(reply.status_code, _parsed(reply.content))

    async def curl(self, *arguments: str) -> Reply:
        """`curl ARGUMENTS`, with the server's address before each path."""
        words = [f"{self.url}{word}" if word.startswith("/") else word for word in arguments]
        process = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "--max-time", str(PATIENCE_S), "-w", "\n%{http_code}", *words),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        body, _, status = output.rpartition(b"\n")
        return Reply(int(status), _parsed(body))


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@asynccontextmanager
async def serving(
    store: Store,
    *,
    settings: EngineSettings | None = None,
    auth: Authenticator | None = None,
    tokens: TokenRegistry | None = None,
    info: Info | None = None,
    buffer_size: int = 10_000,
    leads: bool = True,
    clock: Callable[[], Micros] = wall_clock,
    name: str = "",
) -> AsyncIterator[Running]:
    """Until the end of the block. The store is open already."""
    listening = socket.create_server(("127.0.0.1", 0))
    # Connections inherit it; asyncio does not see that it should set it, and 40 ms a call add up.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    host = HostEnvironment(name or url, url, clock, lambda: uuid4().hex)
    engine = Engine(store, host, settings or quick())
    services = Services(
        engine,
        AgentSync(engine, store),
        store,
        EventBuffer(buffer_size),
        auth=auth,
        tokens=tokens,
        metrics=lambda: (b"phalanx_up 1\n", "text/plain; version=0.0.4"),
        info=info,
    )
    running = Running(engine, services, url)
    server = HttpServer(with_services(_routes(services.info.version), services))
    life = asyncio.create_task(engine.run())
    served = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        if leads:
            await running.lead()
        yield running
        if life.done() and not life.cancelled():
            life.result()
    finally:
        await running.client.aclose()
        services.close()
        server.should_exit = True
        await served
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


def quick(**fields: Any) -> EngineSettings:
    """Engine settings with some fields replaced, usually by shorter times.

    Leases and held calls do not end because the process of the test was suspended for a while.
    """
    return replace(EngineSettings(lease_s=3600.0, sync_wait_s=PATIENCE_S), **fields)
