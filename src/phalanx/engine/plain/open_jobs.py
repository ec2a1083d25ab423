"""Jobs that any plain runner may claim: one task, no resources requested, not on hold.

They are kept in order as they arrive, so that a claim costs the same however many are pending.
"""

import heapq
from collections.abc import Callable

from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.handlers.startable import unfenced_worker
from phalanx.core.queues import stopped_by
from phalanx.core.states import State
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.turn import Turn

#: Higher priority first, then older.
_Key = tuple[int, Micros, str]


class OpenJobs:
    """`on_added` is called for every job that becomes claimable."""

    def __init__(self, on_added: Callable[[], None]) -> None:
        self._on_added = on_added
        self._cluster: Cluster | None = None
        self._heap: list[_Key] = []
        #: job → its key; an entry of the heap with another key is outdated.
        self._keys: dict[str, _Key] = {}
        #: (time, job) of jobs that may not start before that time.
        self._later: list[tuple[Micros, str]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def observe(self, turn: Turn) -> None:
        if any(changes.queues for changes in turn.changes):
            self._cluster = None  # a queue may have been stopped or started: load again
        self._load(turn.cluster)
        for changes in turn.changes:
            for job in changes.gangs:
                gang = turn.cluster.gangs.get(job)
                if gang is not None:
                    self._add(turn.cluster, gang)
        self._add_due(turn)

    def first(self, turn: Turn) -> Gang | None:
        """The first job that can start now. It stays in the order until it is claimed."""
        self._load(turn.cluster)
        self._add_due(turn)
        while self._heap:
            key = self._heap[0]
            gang = turn.cluster.gangs.get(key[2])
            is_current = self._keys.get(key[2]) == key
            if is_current and gang is not None and _is_claimable(turn.cluster, gang):
                not_before = 0 if gang.job.pending is None else gang.job.pending.not_before
                if unfenced_worker(turn.cluster, gang) is not None:
                    not_before = turn.now + SECOND  # look again then
                if not_before <= turn.now:
                    return gang
                heapq.heappush(self._later, (not_before, key[2]))
            heapq.heappop(self._heap)
            if self._keys.get(key[2]) == key:
                del self._keys[key[2]]
        return None

    def _load(self, cluster: Cluster) -> None:
        """Start again with the jobs of a cluster that was loaded since."""
        if cluster is not self._cluster:
            self._cluster = cluster
            self._heap, self._keys, self._later = [], {}, []
            for gang in cluster.gangs.values():
                self._add(cluster, gang)

    def _add(self, cluster: Cluster, gang: Gang) -> None:
        if not _is_claimable(cluster, gang):
            return
        job = gang.job
        key = (-job.priority, job.created_at, job.id)
        if self._keys.get(job.id) != key:
            self._keys[job.id] = key
            heapq.heappush(self._heap, key)
            self._on_added()

    def _add_due(self, turn: Turn) -> None:
        while self._later and self._later[0][0] <= turn.now:
            gang = turn.cluster.gangs.get(heapq.heappop(self._later)[1])
            if gang is not None:
                self._add(turn.cluster, gang)


def _is_claimable(cluster: Cluster, gang: Gang) -> bool:
    return (
        len(gang.tasks) == 1
        and gang.tasks[0].state is State.PENDING
        and not gang.job.on_hold
        and gang.job.spec.is_anonymous
        and stopped_by(cluster.queues, gang.job.spec.queue) is None
    )
