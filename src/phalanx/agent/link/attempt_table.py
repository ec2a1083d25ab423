"""The attempts on this worker, as the spawner last reported them."""

import asyncio

from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.core.time_units import Micros


class AttemptTable:
    def __init__(self) -> None:
        self.changed = asyncio.Event()  #: set whenever an attempt was updated or removed
        self._statuses: dict[AttemptKey, AttemptStatus] = {}
        self._acknowledged: set[AttemptKey] = set()

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._statuses

    def get(self, key: AttemptKey) -> AttemptStatus | None:
        return self._statuses.get(key)

    def update(self, status: AttemptStatus) -> None:
        self._statuses[status.key] = status
        self.changed.set()

    def remove(self, key: AttemptKey) -> AttemptStatus | None:
        """Remove an attempt and return its last status, if it had one."""
        self._acknowledged.discard(key)
        self.changed.set()
        return self._statuses.pop(key, None)

    def acknowledge(self, key: AttemptKey) -> None:
        """Mark an attempt whose end the server knows, until it is removed."""
        self._acknowledged.add(key)

    def is_acknowledged(self, key: AttemptKey) -> bool:
        return key in self._acknowledged

    @property
    def is_empty(self) -> bool:
        return not self._statuses

    @property
    def all_ended(self) -> bool:
        return all(status.has_ended for status in self._statuses.values())

    @property
    def all_stopping(self) -> bool:
        """Whether every attempt has ended or was sent a stop signal."""
        return all(status.has_ended or status.signalled for status in self._statuses.values())

    def fence_graces(self) -> list[Micros]:
        """The grace of every running attempt that must stop when its lease ends."""
        return [
            status.fence_grace
            for status in self._statuses.values()
            if status.fence_grace is not None and not status.has_ended
        ]
