"""The database of a run: a PostgreSQL that can be restarted and frozen, or a SQLite file."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.compliance.backends import PostgresServer, postgres_server


class Database:
    def __init__(self, store: str, server: PostgresServer | None = None) -> None:
        self.store = store
        self._server = server

    async def restart(self) -> None:
        """Restart it without a clean shutdown."""
        if self._server is not None:
            await self._server.restart()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the database."""
        if self._server is None or self._server._data is None:
            return
        postmaster = int((self._server._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            os.kill(pid, number)


@asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[Database]:
    if kind == "sqlite":
        yield Database(f"sqlite:{folder / 'phalanx.db'}")
        return
    with postgres_server() as server:
        backend = await server.backend()
        yield Database(server.dsn(schema=backend.schema), server)
