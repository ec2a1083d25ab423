"""The attempts that have ended: kept in the journal until the server has acknowledged them.

Attempts that were forgotten are remembered by number, so that a late instruction cannot run one
again.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.agent.spawner.journal import EndEntry, ForgetEntry, Journal

#: An end that the server has not acknowledged by then is flushed to disk.
_FLUSH_S = 1.0
#: The number of tasks whose last forgotten attempt is remembered.
_REMEMBERED_TASKS = 10_000


class FinishedAttempts:
    def __init__(self, journal: Journal, statuses: Iterable[AttemptStatus]) -> None:
        self._journal = journal
        self._by_key = {status.key: status for status in statuses}
        self._forgotten_epochs: dict[str, int] = {}
        self._flush_at: float | None = None

    def __iter__(self) -> Iterator[AttemptStatus]:
        return iter(self._by_key.values())

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._by_key

    def get(self, key: AttemptKey) -> AttemptStatus | None:
        return self._by_key.get(key)

    def add(self, status: AttemptStatus, now: float) -> None:
        self._by_key[status.key] = status
        self._journal.add(EndEntry(status))
        if self._flush_at is None:
            self._flush_at = now + _FLUSH_S

    def forget(self, key: AttemptKey) -> None:
        """Remove an attempt, once the server has acknowledged its end."""
        if self._by_key.pop(key, None) is None:
            return
        self._journal.add(ForgetEntry(*key))
        task, epoch = key
        self._forgotten_epochs[task] = max(epoch, self._forgotten_epochs.pop(task, -1))
        if len(self._forgotten_epochs) > _REMEMBERED_TASKS:
            del self._forgotten_epochs[next(iter(self._forgotten_epochs))]

    def was_forgotten(self, key: AttemptKey) -> bool:
        """Whether the attempt, or a later one of its task, ran here and was forgotten."""
        task, epoch = key
        return self._forgotten_epochs.get(task, -1) >= epoch

    @property
    def flush_at(self) -> float | None:
        return self._flush_at

    def flush_if_due(self, now: float) -> None:
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = None
            if self._by_key:
                with suppress(OSError):  # the disk fails; the link reports the ends all the same
                    self._journal.flush()
