"""A server on each of the stores; those of the compliance suite are used as they are."""

from collections.abc import AsyncIterator

import pytest_asyncio

from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Store
from tests.compliance.conftest import (
    backend,
    memory_backend,
    postgres,
    postgres_backend,
    sqlite_backend,
    store,
)
from tests.integration.api.serving import Running, serving

__all__ = ["backend", "memory_backend", "postgres", "postgres_backend", "sqlite_backend", "store"]


@pytest_asyncio.fixture
async def on_each_store(store: Store) -> AsyncIterator[Running]:
    async with serving(store) as running:
        yield running


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    """In memory, for what no store can change."""
    async with serving(MemoryStore(clock=wall_clock)) as running:
        yield running
