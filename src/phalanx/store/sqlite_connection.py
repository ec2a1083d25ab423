"""A connection to an SQLite file in a thread of its own, and transactions on it."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from phalanx.store.protocol import OutcomeUnknown, StoreError

T = TypeVar("T")
#: A function that uses the connection, in its thread.
Work = Callable[[sqlite3.Connection], T]

#: How long to wait while another process writes, such as a standby that asks for leadership.
_BUSY_S = 5.0
_RETRY_S = 0.005
#: That stay prepared.
_STATEMENTS = 256


class SQLiteConnection:
    """Runs functions on one connection, one after the other, outside the event loop."""

    def __init__(self, path: Path, *pragmas: str) -> None:
        self._path = path
        self._pragmas = pragmas
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="phalanx-sqlite")
        self._db: sqlite3.Connection | None = None
        self._is_closed = False

    async def run(self, work: Work[T]) -> T:
        """The result of the function. Raises StoreError for every error of SQLite."""
        if self._is_closed:
            raise StoreError(f"{self._path} is closed; open another store")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)
        except (sqlite3.Error, OverflowError) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _call(self, work: Work[T]) -> T:
        if self._db is None:
            self._db = self._connect()
        return work(self._db)

    def _connect(self) -> sqlite3.Connection:
        # The module's own transactions are off: they begin late, and without a write lock.
        db = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, cached_statements=_STATEMENTS
        )
        for pragma in self._pragmas:
            _retry_while_busy(partial(db.execute, f"PRAGMA {pragma}"))
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
            self._thread.shutdown()


def _retry_while_busy(work: Callable[[], object]) -> None:
    """Run a function until no other process is in the way.

    SQLite does not wait by itself while a new file changes to WAL, and while the last process that
    leaves a file cleans it up.
    """
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)
        else:
            return


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """A write transaction: its changes become durable together or not at all.

    Raises OutcomeUnknown if the commit itself fails, because its bytes can be on the disk.
    """
    if db.in_transaction:  # an earlier rollback failed, as on a full disk
        db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        _roll_back(db)
        raise
    try:
        db.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(db)
        raise OutcomeUnknown(f"the commit may or may not be on disk: {error}") from error


def _roll_back(db: sqlite3.Connection) -> None:
    # Some errors have ended the transaction already.
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
