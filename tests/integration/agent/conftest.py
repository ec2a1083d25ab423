"""A fleet of eight workers, shared by the tests of a module; each test repairs what it broke."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.machines import Fleet
from tests.integration.agent.ranks import Ranks


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    # The tests fail gangs on purpose. A worker that happened to run three of the failed tasks would
    # be cordoned, and a gang of eight would not fit any more.
    await fleet.serve("--suspect-jobs=1000")
    await fleet.work(8)
    yield fleet
    await fleet.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("served"))
    await fleet.serve("--suspect-jobs=1000")
    yield fleet
    await fleet.close()


@pytest_asyncio.fixture(loop_scope="module")
async def small(_served: Fleet, tmp_path: Path) -> AsyncIterator[Fleet]:
    """The server of the module without workers; the test starts its own."""
    _served.folder = tmp_path
    yield _served
    await _served.clear()


@pytest_asyncio.fixture(loop_scope="module")
async def impatient(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A server without workers that declares workers lost after 12 seconds."""
    fleet = Fleet(tmp_path)
    # The workers answer every second, so that a busy machine does not make them seem lost.
    await fleet.serve("--lost-after=12s", "--sync-wait=1s")
    yield fleet
    await fleet.close()


@pytest.fixture
def ranks(fleet: Fleet, tmp_path: Path) -> Ranks:
    return Ranks(fleet, tmp_path / "gang")
