"""Connections to PostgreSQL: one that writes, and a small pool that reads.

A transaction of the writer locks the leader's row from its first statement to its end, so the
holder of that row knows that no other transaction is open. A connection that had an error is
closed, and the next call opens a new one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from phalanx.store.protocol import OutcomeUnknown, StoreError

try:
    import asyncpg
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the PostgreSQL store needs asyncpg; install it with: pip install 'phalanx[postgres]'"
    ) from error

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]

#: Every error that can happen between here and the server. A timeout is an OSError.
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

#: Those that may pass by themselves: no network, no process, or one that is starting.
PASSING_FAULTS = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.TooManyConnectionsError,
)

#: For calls that move much data: loading a cluster, a large blob.
SLOW_S = 120.0

_CLOSED = "the store is closed; open another one"
_READERS = 4


class PostgresConnections:
    """The connections of one store."""

    def __init__(self, dsn: str, timeout_s: float) -> None:
        """`timeout_s` limits a commit, and how long the server waits for a silent client that
        locks the leader's row."""
        self._dsn = dsn
        self.timeout_s = timeout_s
        #: Long enough for an earlier transaction to end whose connection was lost: first its
        #: statement times out, then its client.
        self.patience_s = 4 * timeout_s
        self._writer: Connection | None = None
        self._turn = asyncio.Lock()
        self._pool: Pool | None = None
        self._is_closed = False

    async def open_pool(self) -> None:
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=_READERS,
            timeout=self.timeout_s,
            server_settings=self._settings(SLOW_S),
        )

    async def close(self) -> None:
        self._is_closed = True
        self._close_writer()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(self.timeout_s):
                    await pool.close()
            except FAULTS:
                pool.terminate()

    @asynccontextmanager
    async def exclusive_writer(self, timeout_s: float | None = None) -> AsyncIterator["Connection"]:
        """The write connection, for one caller at a time.

        An error, the timeout or a cancellation closes the connection, which ends its transaction.
        """
        if self._is_closed:
            raise ConnectionError(_CLOSED)
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s or self.timeout_s):
                    if self._writer is None or self._writer.is_closed():
                        self._writer = await asyncpg.connect(
                            self._dsn, server_settings=self._settings(self.timeout_s)
                        )
                    yield self._writer
            except StoreError:
                await self._roll_back()
                raise
            except BaseException:
                self._close_writer()
                raise

    @asynccontextmanager
    async def writing(
        self, what: str, timeout_s: float | None = None
    ) -> AsyncIterator["Connection"]:
        """The same, with every fault as a StoreError that names what could not be done."""
        try:
            async with self.exclusive_writer(timeout_s) as connection:
                yield connection
        except FAULTS as error:
            raise StoreError(f"cannot {what}: {message_of(error)}") from error

    @asynccontextmanager
    async def transaction(self, what: str) -> AsyncIterator["Connection"]:
        """The same, in a transaction. Raises OutcomeUnknown if the commit itself fails."""
        is_committing = False
        try:
            async with self.exclusive_writer() as connection:
                await connection.execute("BEGIN")
                yield connection
                is_committing = True
                await connection.execute("COMMIT")
        except FAULTS as error:
            kind = OutcomeUnknown if is_committing else StoreError
            raise kind(f"cannot {what}: {message_of(error)}") from error

    @asynccontextmanager
    async def reading(self, timeout_s: float) -> AsyncIterator[Any]:
        """A connection of the pool."""
        if self._pool is None:
            raise StoreError(_CLOSED)
        try:
            # The timeout of `acquire` also limits the release, which waits for a cancelled
            # statement: a silent server would never answer.
            async with (
                asyncio.timeout(timeout_s),
                self._pool.acquire(timeout=self.timeout_s) as connection,
            ):
                yield connection
        except FAULTS as error:
            raise StoreError(f"cannot read from PostgreSQL: {message_of(error)}") from error

    async def fetch(self, query: str, *values: object) -> list[Any]:
        """The rows of one query."""
        async with self.reading(self.timeout_s) as connection:
            rows: list[Any] = await connection.fetch(query, *values)
            return rows

    def _settings(self, statement_s: float) -> dict[str, str]:
        """Settings of every session: a commit is acknowledged when it is flushed, and the server
        gives up on a client that has gone silent, so that it does not lock the leader's row."""
        silence_s = max(1, round(self.timeout_s))
        return {
            "application_name": "phalanx",
            "synchronous_commit": "on",
            "default_transaction_isolation": "read committed",
            "statement_timeout": milliseconds(statement_s),  # includes the wait for a lock
            "idle_in_transaction_session_timeout": milliseconds(self.timeout_s),
            "tcp_keepalives_idle": str(silence_s),
            "tcp_keepalives_interval": str(silence_s),
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": milliseconds(self.timeout_s),
        }

    async def _roll_back(self) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                if self._writer is not None and self._writer.is_in_transaction():
                    await self._writer.execute("ROLLBACK")
        except BaseException as error:
            self._close_writer()
            if not isinstance(error, FAULTS):
                raise

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None


def milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


def message_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
