"""A server process: started, and shut down without losing accepted commands.

The first SIGTERM answers the accepted commands, resigns and exits; the second exits at once.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import structlog
import uvloop

from phalanx.engine.standbys import keep_noting
from phalanx.host.interpreter import tune_interpreter
from phalanx.identity.token_registry import TokenRegistry
from phalanx.secrets.encryption import KeyFileError
from phalanx.server import stores
from phalanx.server.assembly import assemble
from phalanx.server.cluster_certificates import ClusterCertificates
from phalanx.server.config import Config
from phalanx.server.file_certificate import FileCertificate
from phalanx.server.http_server import LINGER_S
from phalanx.server.listening import CannotListen, Listening, is_loopback, is_open
from phalanx.server.log_output import Logger
from phalanx.server.options import BY_NAME, TlsMode
from phalanx.server.retention import Retention, keep_pruning
from phalanx.server.secret_parts import SecretParts, secret_parts
from phalanx.server.tls_context import ServerCertificate
from phalanx.store.protocol import Leader, Store, StoreError, StoreUnreachable, StoreUnreadable

#: How long the start message waits for the result of the election.
_ELECTION_S = 5.0
#: The pause between two attempts to reach the database at the start.
_STORE_RETRY_S = 1.0


class CannotServe(Exception):  # noqa: N818
    """The server cannot start; the message says why and what to do."""


class ServerStarted(NamedTuple):
    """The facts of the start message."""

    url: str
    store: str
    term: int | None  #: None on a standby
    leader: Leader | None
    needs_tokens: bool
    has_dashboard: bool
    advertised: str
    fingerprint: str | None  #: of the certificate authority, with `tls auto`


Announce = Callable[[ServerStarted], None]


def run(config: Config, announce: Announce) -> int:
    """Serve until a signal; the exit status. Raises CannotServe."""
    tune_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, announce))


async def _serve(config: Config, announce: Announce) -> int:
    place = stores.place_of(config)
    shown = stores.shown(place)
    log: Logger = structlog.get_logger().bind()
    try:
        store = await _open(config, place, log)
    except (StoreError, OSError) as error:
        raise CannotServe(f"{shown}: {error}") from error
    try:
        tokens = await _tokens(config, store, place)
        secrets = secret_parts(config, store)
        await secrets.objects.refresh()
        listening = Listening(config)
        listening.certificate = await _certificate(config, store, listening, log)
    except (CannotListen, KeyFileError) as error:
        await store.close()
        raise CannotServe(str(error)) from error
    except StoreError as error:
        await store.close()
        raise CannotServe(f"{shown}: {error}") from error
    except OSError as error:
        await store.close()
        raise CannotServe(
            f"{shown}: {error.strerror or type(error).__name__}; check that the database can be"
            " reached and written, or choose another with --store"
        ) from error
    except CannotServe:
        await store.close()
        raise
    server = ServerProcess(config, store, tokens, secrets, listening, log)
    log.info("listening", url=listening.url, store=shown, name=server.name)
    try:
        return await server.live(lambda: announce(server.started(shown)))
    finally:
        with suppress(TimeoutError):  # a store that hangs must not keep the process alive
            async with asyncio.timeout(LINGER_S):
                await store.close()


async def _open(config: Config, place: str, log: Logger) -> Store:
    """The store, opened as soon as its database can be reached. Raises StoreError."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + config["store_wait"]
    while True:
        store = stores.store_at(place, config["lease"])
        try:
            await store.open()
        except StoreUnreachable as error:
            await store.close()
            if loop.time() + _STORE_RETRY_S > give_up_at:
                waited = BY_NAME["store_wait"].shown(config["store_wait"])
                raise StoreError(
                    f"{error}; it could not be reached for {waited} (store_wait); start the"
                    " database, or correct --store"
                ) from error
            log.warning("database cannot be reached; trying again", why=str(error))
        except BaseException:
            await store.close()
            raise
        else:
            return store
        await asyncio.sleep(_STORE_RETRY_S)


async def _tokens(config: Config, store: Store, place: str) -> TokenRegistry:
    """The tokens. Raises CannotServe if other hosts could reach the server and there are none."""
    registry = TokenRegistry(store, open_on_loopback=is_open(config))
    await registry.refresh()
    if is_loopback(config["host"]) or registry.has_tokens:
        return registry
    host = config["host"]
    if place == "memory":
        raise CannotServe(
            f"listening on {host} requires tokens, and the memory store has none at every start;"
            " choose sqlite or postgres with --store"
        )
    raise CannotServe(
        f"listening on {host} requires tokens, and there are none; create one first:\n"
        f"  phalanx token create admin --role admin --store '{stores.shown(place)}'"
    )


async def _certificate(
    config: Config, store: Store, listening: Listening, log: Logger
) -> ServerCertificate | None:
    """The certificate of the server; None without TLS. Raises CannotListen or StoreError."""
    if config["tls_cert"] is not None:
        return FileCertificate(config["tls_cert"], config["tls_key"], log)
    if config["tls"] == TlsMode.OFF:
        return None
    certificates = ClusterCertificates(store, listening.names(), log)
    await certificates.refresh()
    return certificates


class ServerProcess:
    """The tasks of one server, from start to exit."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        config: Config,
        store: Store,
        tokens: TokenRegistry,
        secrets: SecretParts,
        listening: Listening,
        log: Logger,
    ) -> None:
        self._config = config
        self._store = store
        self._tokens = tokens
        self._listening = listening
        self._log = log
        self._stopping = asyncio.Event()
        self._secrets = secrets
        self._parts = assemble(config, store, tokens, secrets, listening, log)

    @property
    def name(self) -> str:
        return self._parts.host.name

    def started(self, store: str) -> ServerStarted:
        certificate = self._listening.certificate
        return ServerStarted(
            self._listening.url,
            store,
            self._parts.engine.term,
            self._parts.event_logger.leader,
            not is_open(self._config),
            self._config["dashboard"],
            self._listening.advertised,
            certificate.fingerprint if isinstance(certificate, ClusterCertificates) else None,
        )

    async def live(self, announce: Callable[[], None]) -> int:
        """Serve until a signal, or until a part fails; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        kept = Retention(self._config["retention"], self._config["audit_retention"])
        engine = self._parts.engine
        works: dict[str, Coroutine[Any, Any, None]] = {
            "engine": engine.run(),
            "http": self._parts.http.serve(sockets=[self._listening.socket]),
            "tokens": self._tokens.keep_refreshing(),
            "objects": self._secrets.objects.keep_refreshing(),
            "audit": self._parts.services.refused_requests.keep_flushing(),
            "usage": self._parts.services.usage.keep_sampling(),
            "standby": keep_noting(engine, self._store, self._parts.host),
            "retention": keep_pruning(engine, self._store, kept, self._log),
        }
        if self._listening.certificate is not None:
            works["certificate"] = self._listening.certificate.keep_current()
        tasks = {name: asyncio.create_task(work, name=name) for name, work in works.items()}
        greeting = asyncio.create_task(self._greet(announce))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([stop, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in tasks.values() if task.done()]
        for task in failed:
            error = _exception(task)
            if isinstance(error, StoreUnreadable):
                self._log.critical("the database cannot be read", why=str(error))
            else:
                self._log.critical(
                    "a part of the server failed", part=task.get_name(), exc_info=error
                )
        status = await self._shut_down(tasks["http"]) or int(bool(failed))
        rest: list[asyncio.Task[Any]] = [greeting, stop, *tasks.values()]
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._parts.services.close()
        self._log.info("stopped", name=self.name)
        return status

    async def _greet(self, announce: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(_ELECTION_S):
                await self._parts.event_logger.decided.wait()
        except TimeoutError:
            self._log.warning("no leader yet", why="the database has not answered")
        announce()

    async def _shut_down(self, http: asyncio.Task[None]) -> int:
        """Answer the accepted commands, resign, and end every request; the exit status."""
        self._log.info("stopping", name=self.name)
        try:
            async with asyncio.timeout(self._config["stop_wait"]):
                await self._parts.engine.stop()
                await self._parts.requests.end_requests()
                with suppress(StoreError):
                    await self._parts.services.refused_requests.flush()
                self._parts.http.should_exit = True
                await asyncio.wait([http])
        except TimeoutError:
            self._log.error(
                "stopped before all requests were answered", waited_s=self._config["stop_wait"]
            )
            return 1
        return 0

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            # Anything that is not durable was not acknowledged either.
            os._exit(128 + number)
        self._stopping.set()


def _exception(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
