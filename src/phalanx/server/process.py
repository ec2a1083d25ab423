"""A server's life as a process: put together, started, and stopped so that nothing is lost.

The first SIGTERM finishes what was accepted, resigns and leaves; the second leaves at once.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
import uvicorn
import uvloop
from litestar.types import ASGIApp

from phalanx.api.app import create_app
from phalanx.api.services import Info, Services
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.cron_lookups import CronLookups
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import PlannerThread
from phalanx.engine.telemetry import TelemetryFanout
from phalanx.server import stores
from phalanx.server.config import Config
from phalanx.server.http_protocol import CoalescingProtocol
from phalanx.server.listening import CannotListen, Listening, is_loopback
from phalanx.server.logs import EventLogger, Logger
from phalanx.server.metrics.prometheus import Metrics
from phalanx.server.retention import keep_pruning
from phalanx.server.same_origin import SameOrigin
from phalanx.server.shutdown import Shutdown
from phalanx.server.tokens import TokenRegistry
from phalanx.store.protocol import Leader, Store, StoreError
from phalanx.store.sqlite import wall_clock

#: How long connections have after SIGTERM to take their last answer.
_LINGER_S = 1
#: How long the start message waits to know who leads.
_PATIENCE_S = 5.0
_KEEP_ALIVE_S = 75
#: Rows are many, live long and hold no cycles: looking for garbage is seldom worth it.
_GARBAGE = (20_000, 20, 20)


class CannotServe(Exception):  # noqa: N818
    """The server does not start; the message says why and what to do."""


class ServerStarted(NamedTuple):
    """What the start message tells."""

    url: str
    store: str
    term: int | None  #: None on a standby
    leader: Leader | None
    needs_tokens: bool


Announce = Callable[[ServerStarted], None]


def run(config: Config, announce: Announce) -> int:
    """Serve until told to stop; the exit status. Raises CannotServe."""
    gc.freeze()  # what was imported stays
    gc.set_threshold(*_GARBAGE)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, announce))


async def _serve(config: Config, announce: Announce) -> int:
    place = stores.place_of(config)
    try:
        store = stores.store_at(place, config["lease"])
    except StoreError as error:
        raise CannotServe(f"{stores.shown(place)}: {error}") from error
    log: Logger = structlog.get_logger().bind()
    try:
        await store.open()
        tokens = await _tokens(config, store, place)
        listening = Listening(config)
    except CannotListen as error:
        await store.close()
        raise CannotServe(str(error)) from error
    except (StoreError, OSError) as error:
        await store.close()
        raise CannotServe(f"{stores.shown(place)}: {error}") from error
    except CannotServe:
        await store.close()
        raise
    server = ServerProcess(config, store, tokens, listening, log)
    log.info("listening", url=listening.url, store=stores.shown(place), name=server.name)
    try:
        return await server.live(lambda: announce(server.started(stores.shown(place))))
    finally:
        with suppress(TimeoutError):  # a store that hangs must not keep us
            async with asyncio.timeout(_LINGER_S):
                await store.close()


async def _tokens(config: Config, store: Store, place: str) -> TokenRegistry:
    """Nobody but this host may speak without a token. Raises CannotServe."""
    registry = TokenRegistry(store, open_on_loopback=_is_open(config))
    await registry.look()
    if is_loopback(config["host"]) or registry.has_tokens:
        return registry
    host = config["host"]
    if place == "memory":
        raise CannotServe(
            f"listening on {host} needs tokens, and the memory store is empty at every start; "
            "name a store that lasts with --store"
        )
    raise CannotServe(
        f"listening on {host} needs tokens, and there is none; make one first:\n"
        f"  phalanx token create admin --role admin --store '{place}'"
    )


def _is_open(config: Config) -> bool:
    """Whether no token is needed."""
    return is_loopback(config["host"]) and bool(config["loopback_open"])


class ServerProcess:
    """The parts of one server, and the tasks that run them."""

    def __init__(
        self, config: Config, store: Store, tokens: TokenRegistry, listening: Listening, log: Logger
    ) -> None:
        self.name: str = config["name"] or f"{socket.gethostname()}-{os.getpid()}"
        self._config = config
        self._store = store
        self._tokens = tokens
        self._listening = listening
        self._log = log
        self._stopping = asyncio.Event()
        self._chronicle = EventLogger(log)
        settings = config.engine()
        self.metrics = Metrics()
        self.engine = Engine(
            store,
            HostEnvironment(
                self.name,
                listening.advertised,
                wall_clock,
                lambda: uuid4().hex,
                CronLookups(refusal=tokens.refusal),
            ),
            settings,
            planner=PlannerThread(self.metrics.plan_and_count),
            observers=[self._chronicle.observe, self.metrics.observe],
        )
        self.engine.telemetry = TelemetryFanout(self._chronicle, self.metrics)
        self._services = Services(
            engine=self.engine,
            agent_sync=AgentSync(self.engine, store),
            store=store,
            event_buffer=EventBuffer(settings.event_buffer_size),
            auth=tokens,
            metrics=lambda: (self.metrics.text(), self.metrics.content_type),
            info=Info(
                body_limit_bytes=config["body_limit"],
                checkpoint_limit_bytes=config["checkpoint_limit"],
                output_limit_bytes=config["output_limit"],
                priority_classes=config["priority_classes"],
            ),
        )
        self._requests = Shutdown(self._application())
        self._http = _Http(self._http_config())

    def _application(self) -> ASGIApp:
        app: ASGIApp = create_app(self._services)
        if _is_open(self._config):
            known = (self._listening.url, self._listening.advertised)
            return SameOrigin(app, *(urlsplit(url).hostname or "" for url in known))
        return app

    def _http_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._requests,
            http=CoalescingProtocol,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_LINGER_S,
            ssl_certfile=self._config["tls_cert"],
            ssl_keyfile=self._config["tls_key"],
        )

    def started(self, store: str) -> ServerStarted:
        leader = self._chronicle.leader
        return ServerStarted(
            self._listening.url,
            store,
            self.engine.term,
            leader,
            not _is_open(self._config),
        )

    async def live(self, announce: Callable[[], None]) -> int:
        """Until a signal, or until a part breaks; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        works: dict[str, Coroutine[Any, Any, None]] = {
            "engine": self.engine.run(),
            "http": self._http.serve(sockets=[self._listening.socket]),
            "tokens": self._tokens.keep_looking(),
            "retention": keep_pruning(
                self.engine, self._store, self._config["retention"], self._log
            ),
        }
        tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
        greeting = asyncio.create_task(self._greet(announce))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        broken = [task for task in tasks if task.done()]
        for task in broken:
            self._log.critical(
                "a part of the server broke", part=task.get_name(), exc_info=_of(task)
            )
        status = await self._leave(tasks) or int(bool(broken))
        rest: list[asyncio.Task[Any]] = [greeting, stop, *tasks]
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._log.info("stopped", name=self.name)
        return status

    async def _greet(self, announce: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._chronicle.decided.wait()
        except TimeoutError:
            self._log.warning("nobody leads yet", why="the store has not said who does")
        announce()

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> int:
        """Finish what was accepted, resign, and let go of everybody; the exit status."""
        self._log.info("stopping", name=self.name)
        http = next(task for task in tasks if task.get_name() == "http")
        try:
            async with asyncio.timeout(self._config["stop_wait"]):
                await self.engine.stop()
                await self._requests.dismiss()
                self._http.should_exit = True
                await asyncio.wait([http])
        except TimeoutError:
            self._log.error(
                "left before everything was finished", waited_s=self._config["stop_wait"]
            )
            return 1
        return 0

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            # Whatever is not durable was not acknowledged either.
            os._exit(128 + number)
        self._stopping.set()


class _Http(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
