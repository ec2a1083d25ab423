"""The last records, kept in memory for streams. What has fallen out of it must be loaded anew.

Records come in once they are durable, each with the namespace of its job, so that a stream can be
cut to what its reader may see.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from phalanx.core.model import Record
from phalanx.engine.turn import Turn


class Entry(NamedTuple):
    record: Record
    namespace: str | None  #: of the record's job; None if it has none, or none that is known


class EventBuffer:
    def __init__(self, size: int) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)
        #: The number of the last record that we know of, once we know of one.
        self.last: int | None = None
        self._news = asyncio.Event()

    def catch_up(self, last: int) -> None:
        """The last record has this number. What we have not seen, somebody else has written."""
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
        self._news.set()
        self._news = asyncio.Event()

    def since(self, seq: int) -> list[Entry] | None:
        """What came after that record; None if some of it is no longer here."""
        if self.last is None or seq >= self.last:
            return []
        if not self._entries or seq + 1 < self._entries[0].record.seq:
            return None
        found = []
        for entry in reversed(self._entries):
            if entry.record.seq <= seq:
                break
            found.append(entry)
        return found[::-1]

    @property
    def news(self) -> asyncio.Event:
        """Set with the next record. Ask for it before looking, and nothing is missed."""
        return self._news


def _entries(turn: Turn) -> Iterator[Entry]:
    ended = {job.id: job for changes in turn.changes for job in changes.jobs.values()}
    for record in turn.records():
        job = None
        if record.job is not None:
            gang = turn.cluster.gangs.get(record.job)
            job = gang.job if gang is not None else ended.get(record.job)
        yield Entry(record, None if job is None else job.spec.namespace)
