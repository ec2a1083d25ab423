"""Every test that asks for a `place`, a `store` or a `term` runs on each of the three stores."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.core.spec.job import SECOND
from phalanx.store.protocol import Store
from tests.compliance.backends import (
    MemoryPlace,
    Place,
    PlaceWithSchema,
    PostgresPlace,
    PostgresServer,
    SQLitePlace,
    postgres_server,
)

LEASE = 10 * SECOND


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest_asyncio.fixture
async def postgres_place(postgres: PostgresServer) -> AsyncIterator[PostgresPlace]:
    yield await postgres.place()
    await postgres.clean()


@pytest.fixture
def sqlite_place(tmp_path: Path) -> SQLitePlace:
    return SQLitePlace(tmp_path / "phalanx.db")


@pytest.fixture
def memory_place() -> MemoryPlace:
    return MemoryPlace()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def place_with_schema(request: pytest.FixtureRequest) -> PlaceWithSchema:
    found: PlaceWithSchema = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest_asyncio.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    handle = place.handle()
    await handle.open()
    yield handle
    await handle.close()


@pytest_asyncio.fixture
async def term(store: Store) -> int:
    term = await store.lead("s-1", "http://s-1", LEASE)
    assert term is not None
    return term
