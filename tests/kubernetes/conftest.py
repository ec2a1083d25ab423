"""One control plane for the whole run. Every test has a namespace and nodes of its own."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from phalanx.kube.api.client import ApiClient
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.writes import status_writer
from tests.kubernetes.binaries import CONTROL_PLANE, KWOK, Binary, CannotBuildError, built
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import Pool
from tests.kubernetes.shared_server import shared_api_server, shared_server
from tests.requirements import leave_out


@pytest.fixture(scope="session")
def control_plane_binary(request: pytest.FixtureRequest) -> Path:
    return binary_or_skip(request.config, CONTROL_PLANE)


@pytest.fixture(scope="session")
def kwok_binary(request: pytest.FixtureRequest) -> Path:
    return binary_or_skip(request.config, KWOK)


def binary_or_skip(config: pytest.Config, binary: Binary) -> Path:
    """The path of the binary. Without it the test is skipped; where CI is set, the test fails."""
    if config.getoption("--no-kubernetes"):
        pytest.skip("left out with --no-kubernetes: needs a Kubernetes control plane")
    try:
        return built(binary, _speaker(config))
    except CannotBuildError as error:
        leave_out(f"no Kubernetes control plane: {error}")


def _speaker(config: pytest.Config) -> Callable[[str], None]:
    """Print a line now, past pytest's capture."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n{line}\n")
            sys.stderr.flush()

    return say


@pytest.fixture(scope="session")
def api_server(control_plane_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> ApiServer:
    """The API server of the run."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return shared_api_server(run / "kubernetes")


@pytest.fixture(scope="session")
def controllers(api_server: ApiServer) -> None:
    """Kubernetes' own controllers: jobs, deployments, budgets, garbage collection."""
    shared_server("controllers", api_server)


@pytest.fixture(scope="session")
def kube_scheduler(api_server: ApiServer) -> None:
    """kube-scheduler, for pods without a scheduler name."""
    shared_server("scheduler", api_server)


@pytest.fixture(scope="session")
def kwok(api_server: ApiServer, kwok_binary: Path) -> None:
    """KWOK, which runs the pods of the nodes with `kubelet="kwok"`."""
    shared_server("kwok", api_server)


@pytest.fixture(autouse=True)
def _new_reasons_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new message with the same kind of reason is written at once, not after a minute: on a busy
    machine a pod may show another one before the one that a test waits for."""
    monkeypatch.setattr(status_writer, "REFRESH_S", 0.0)


@pytest_asyncio.fixture
async def api(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    """A client with all rights."""
    async with ApiClient(find_connection(api_server.kubeconfig)) as client:
        yield client


@pytest_asyncio.fixture
async def pool(api: ApiClient) -> AsyncIterator[Pool]:
    """A namespace and nodes of the test's own."""
    pool = Pool(api, f"t-{uuid4().hex[:10]}")
    await pool.open()
    yield pool
    await pool.close()


@pytest_asyncio.fixture
async def other_pool(api: ApiClient) -> AsyncIterator[Pool]:
    """A second namespace with nodes of its own."""
    pool = Pool(api, f"t-{uuid4().hex[:10]}")
    await pool.open()
    yield pool
    await pool.close()
