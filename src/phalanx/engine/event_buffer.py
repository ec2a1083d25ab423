"""The latest event records, kept in memory for event streams.

Records are added once they are durable, each with the namespace of its job, so that a stream can be
filtered by what its reader may see.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from phalanx.core.records import JobRecord, Record
from phalanx.engine.turn import Turn


class Entry(NamedTuple):
    record: Record
    namespace: str | None  #: of the record's job; None for a record without one


class EventBuffer:
    def __init__(self, size: int) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)
        #: The number of the latest record; None before the first.
        self.last: int | None = None
        self._added = asyncio.Event()

    def catch_up(self, last: int) -> None:
        """Note that the latest record has this number.

        If it is not here, another leader wrote it, and the buffer starts again after it.
        """
        if self.last is None or self.last < last:
            self._entries.clear()
            self.last = last

    def observe(self, turn: Turn) -> None:
        entries = list(_entries(turn))
        if not entries:
            return
        self.catch_up(entries[0].record.seq - 1)
        self._entries.extend(entries)
        self.last = entries[-1].record.seq
        self._added.set()
        self._added = asyncio.Event()

    def since(self, seq: int) -> list[Entry] | None:
        """The records after that one; None if the buffer no longer has all of them."""
        if self.last is None or seq >= self.last:
            return []
        if not self._entries or seq + 1 < self._entries[0].record.seq:
            return None
        entries = []
        for entry in reversed(self._entries):
            if entry.record.seq <= seq:
                break
            entries.append(entry)
        return entries[::-1]

    @property
    def added(self) -> asyncio.Event:
        """Set when the next record is added. Take it before calling `since`, so that no record
        is missed in between."""
        return self._added


def _entries(turn: Turn) -> Iterator[Entry]:
    ended = {job.id: job for changes in turn.changes for job in changes.jobs.values()}
    for record in turn.records():
        job = None
        if isinstance(record, JobRecord):
            gang = turn.cluster.gangs.get(record.job)
            job = gang.job if gang is not None else ended.get(record.job)
        yield Entry(record, None if job is None else job.spec.namespace)
