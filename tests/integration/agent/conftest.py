"""A fleet of eight workers for the tests of a module; each test heals what it hurt."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.machines import Fleet
from tests.integration.agent.ranks import Ranks


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    await made.serve()
    await made.work(8)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def small(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A server whose workers the test starts itself."""
    made = Fleet(tmp_path)
    await made.serve()
    yield made
    await made.close()


@pytest.fixture
def ranks(fleet: Fleet, tmp_path: Path) -> Ranks:
    return Ranks(fleet, tmp_path / "gang")
