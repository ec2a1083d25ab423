"""Audit records of requests that changed nothing: counted together, and stored now and then.

Records of changes are stored in the commit of the change. Refused requests can come at any rate, so
equal ones are counted in one record, and the number of records in an hour is limited.
"""

import asyncio
from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace

from phalanx.core.time_units import HOUR, Micros
from phalanx.store.protocol import AuditRecord, Store, StoreError

#: How often the records are stored.
_FLUSH_S = 10.0
#: Beyond this many records in an hour, requests are only counted, in one record for each flush.
_RECORDS_PER_HOUR = 1000

#: What two requests have in common that are counted in one record.
_Kind = tuple[str, str, str, str, str]


class RefusedRequests:
    def __init__(self, store: Store, clock: Callable[[], Micros]) -> None:
        self._store = store
        self._clock = clock
        self._pending: dict[_Kind, AuditRecord] = {}
        self._hour = 0
        self._left = _RECORDS_PER_HOUR
        self._flushing = asyncio.Lock()

    def add(self, record: AuditRecord) -> None:
        kind = (record.principal, record.remote, record.action, record.kind, record.code)
        if kind not in self._pending:
            self._start_hour(record.at // HOUR)
            if self._left == 0:
                kind = ("", "", "", "", "")
                others = AuditRecord(uuid4().hex, record.at, "", "", "", "other requests")
                record = replace(others, outcome=record.outcome, code="several")
            else:
                self._left -= 1
        first = self._pending.get(kind)
        self._pending[kind] = record if first is None else replace(first, count=first.count + 1)

    def _start_hour(self, hour: int) -> None:
        if hour != self._hour:
            self._hour, self._left = hour, _RECORDS_PER_HOUR

    async def flush(self) -> None:
        """Store the records. Raises StoreError, and keeps the records then."""
        async with self._flushing:
            if not self._pending:
                return
            stored, self._pending = self._pending, {}
            try:
                await self._store.add_audit(list(stored.values()))
            except StoreError:
                self._pending = stored | self._pending
                raise

    async def keep_flushing(self) -> None:
        """Flush forever, whether or not the store answers."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            try:
                await self.flush()
            except StoreError:
                continue
