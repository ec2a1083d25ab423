"""Servers that end with their test, and a PostgreSQL that may be hurt."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.tls.authority import Authority, key_to_pem, new_key, to_pem
from tests.compliance.backends import PostgresBackend, PostgresServer, postgres_server
from tests.integration.server.processes import ServerProcess, Start


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server that is killed with the test, whatever state it is in."""
    servers: list[ServerProcess] = []

    async def started(
        store: str, name: str, *flags: str, before: Sequence[str] = (), **variables: str
    ) -> ServerProcess:
        server = await ServerProcess.start(store, name, *flags, before=before, **variables)
        servers.append(server)
        return server

    yield started
    await asyncio.gather(*(server.kill() for server in servers))


@pytest.fixture(scope="session")
def hurt_postgres() -> Iterator[PostgresServer]:
    """Of our own: others must not see it restarted and frozen."""
    with postgres_server() as server:
        yield server


@pytest_asyncio.fixture
async def postgres(hurt_postgres: PostgresServer) -> PostgresServer:
    if not hurt_postgres.can_restart:
        pytest.skip("the environment names a PostgreSQL that is not ours to restart")
    return hurt_postgres


@pytest_asyncio.fixture
async def database(postgres: PostgresServer) -> PostgresBackend:
    return await postgres.backend()


@pytest.fixture
def dsn(postgres: PostgresServer, database: PostgresBackend) -> str:
    return postgres.dsn(schema=database.schema)


class Frozen:
    """Every process of a PostgreSQL, stopped: it neither answers nor refuses."""

    def __init__(self, server: PostgresServer) -> None:
        assert server._data is not None
        self._postmaster = int((server._data / "postmaster.pid").read_text().split()[0])
        self._stopped: list[int] = []

    def __enter__(self) -> None:
        # The postmaster first, so that it starts no other process meanwhile.
        self._stop(self._postmaster)
        for child in _children(self._postmaster):
            self._stop(child)

    def _stop(self, process: int) -> None:
        os.kill(process, signal.SIGSTOP)
        self._stopped.append(process)
        # It goes on until it leaves the kernel, and could start a process there.
        while _state(process) not in "TtZ":
            os.sched_yield()

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._stopped):
            os.kill(process, signal.SIGCONT)


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has just ended
        if int(text.rpartition(")")[2].split()[1]) == parent:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def own_certificate(tmp_path: Path) -> None:
    """A certificate for localhost in cert.pem and key.pem, signed by an authority of its own."""
    authority, key = Authority.create(datetime.now(UTC)), new_key()
    certificate = authority.sign_server(
        key.public_key(), ["localhost", "127.0.0.1"], datetime.now(UTC)
    )
    (tmp_path / "cert.pem").write_text(to_pem(certificate))
    (tmp_path / "key.pem").write_text(key_to_pem(key))
    (tmp_path / "ca.pem").write_text(to_pem(authority.certificate))
