"""One server for the tests of a module, and a terminal that knows where it is."""

import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.terminal import Server, Terminal


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def terminal(server: Server) -> Terminal:
    return Terminal(server.url)


@pytest.fixture(scope="module")
def _emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("emptied")) as running:
        yield running


@pytest.fixture
def own_server(_emptied: Server) -> Iterator[Server]:
    """For a test that has workers of its own: no job, worker or queue of another is there."""
    yield _emptied
    _emptied.empty()


@pytest.fixture(scope="session", autouse=True)
def hear_ctrl_c() -> None:
    """What is started in the background ignores it, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
