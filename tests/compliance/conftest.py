"""Every test with a `backend`, a `store` or a `term` runs on each of the three stores."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.core.time_units import HOUR
from phalanx.store.protocol import Store
from tests.compliance.backends import (
    Backend,
    BackendWithSchema,
    MemoryBackend,
    PostgresBackend,
    PostgresServer,
    SQLiteBackend,
    postgres_server,
)

LEASE = HOUR


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest_asyncio.fixture
async def postgres_backend(postgres: PostgresServer) -> AsyncIterator[PostgresBackend]:
    yield await postgres.backend()
    await postgres.clean()


@pytest.fixture
def sqlite_backend(tmp_path: Path) -> SQLiteBackend:
    return SQLiteBackend(tmp_path / "phalanx.db")


@pytest.fixture
def memory_backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.getfixturevalue(f"{request.param}_backend")
    return chosen


@pytest.fixture(params=["sqlite", "postgres"])
def backend_with_schema(request: pytest.FixtureRequest) -> BackendWithSchema:
    chosen: BackendWithSchema = request.getfixturevalue(f"{request.param}_backend")
    return chosen


@pytest_asyncio.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    handle = backend.handle()
    await handle.open()
    yield handle
    await handle.close()


@pytest_asyncio.fixture
async def term(store: Store) -> int:
    term = await store.lead("s-1", "http://s-1", LEASE)
    assert term is not None
    return term
