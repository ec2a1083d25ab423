"""Audit records of requests that changed nothing: counted together, and stored now and then.

Records of changes are stored in the commit of the change. Refused requests can come at any rate, so
equal ones are counted in one record, and the number of records in an hour is limited: for each
token, and once for all callers without a valid one. So no caller can hide the requests of another.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace

from phalanx.core.time_units import HOUR, Micros
from phalanx.store.protocol import AuditRecord, Store, StoreError

#: How often the records are stored.
_FLUSH_S = 10.0
#: Beyond this many records in an hour, requests of a token, or of all callers without one, are only
#: counted, in one record for each flush.
_RECORDS_PER_HOUR = 1000
#: A caller without a valid token is counted with its network, whose addresses it can choose from.
_NETWORK_BITS = {4: 24, 6: 64}

#: What two requests have in common that are counted in one record: the caller, its address or
#: network, the action, the kind of the target, and the code.
_Kind = tuple[str, str, str, str, str]


class RefusedRequests:
    def __init__(self, store: Store, clock: Callable[[], Micros]) -> None:
        self._store = store
        self._clock = clock
        self._pending: dict[_Kind, AuditRecord] = {}
        self._hour = 0
        #: Records of this hour by the name of the token; empty: of all callers without one.
        self._used: Counter[str] = Counter()
        self._flushing = asyncio.Lock()

    def add(self, record: AuditRecord) -> None:
        has_token = record.role != ""
        origin = record.remote if has_token else _network(record.remote)
        kind = (record.principal, origin, record.action, record.kind, record.code)
        caller = record.principal if has_token else ""
        if kind not in self._pending and not self._take(record.at // HOUR, caller):
            action = "other requests" if has_token else "other requests without a valid token"
            others = AuditRecord(uuid4().hex, record.at, caller, record.role, "", action)
            record = replace(others, outcome=record.outcome, code="several")
            kind = (caller, "", action, "", "")
        self._count(kind, record)

    def _count(self, kind: _Kind, record: AuditRecord) -> None:
        first = self._pending.get(kind)
        if first is None:
            self._pending[kind] = record
            return
        remote = first.remote if first.remote == record.remote else kind[1]
        self._pending[kind] = replace(first, count=first.count + record.count, remote=remote)

    def _take(self, hour: int, caller: str) -> bool:
        """Whether one more record of a caller may be written in this hour; if so, it is counted."""
        if hour != self._hour:
            self._hour, self._used = hour, Counter()
        if self._used[caller] == _RECORDS_PER_HOUR:
            return False
        self._used[caller] += 1
        return True

    async def flush(self) -> None:
        """Store the records. Raises StoreError, and keeps the records then."""
        async with self._flushing:
            if not self._pending:
                return
            stored, self._pending = self._pending, {}
            try:
                await self._store.add_audit(list(stored.values()))
            except StoreError:
                newer, self._pending = self._pending, stored
                for kind, record in newer.items():
                    self._count(kind, record)
                raise

    async def keep_flushing(self) -> None:
        """Flush forever, whether or not the store answers."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            try:
                await self.flush()
            except StoreError:
                continue


def _network(address: str) -> str:
    """The network of an address, such as 10.0.7.0/24."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    bits = _NETWORK_BITS[parsed.version]
    return str(ipaddress.ip_network((parsed, bits), strict=False))
