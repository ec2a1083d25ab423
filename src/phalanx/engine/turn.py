"""One turn of the writer: the commands that arrived since the last turn, applied in order."""

from phalanx.core.changes import Changes, Timer
from phalanx.core.cluster import Cluster
from phalanx.core.events import Event
from phalanx.core.records import Record
from phalanx.core.time_units import Micros
from phalanx.engine.cron_lookups import CronLookups
from phalanx.store.protocol import AuditRecord, UsedKey


class Turn:
    """What a command works on: the cluster, the time, and `apply` to change the cluster."""

    def __init__(self, cluster: Cluster, now: Micros, crons: CronLookups = CronLookups()) -> None:  # noqa: B008
        self.cluster = cluster
        self.now = now
        self._crons = crons
        self.changes: list[Changes] = []
        self.used_keys: list[UsedKey] = []
        self.audit: list[AuditRecord] = []
        self._timers: list[Timer] = []

    def trial_copy(self) -> "Turn":
        """A turn on a copy of the cluster; nothing that it changes is kept."""
        return Turn(self.cluster.copy(), self.now, self._crons)

    def apply(self, event: Event) -> Changes:
        """Apply one event, whole or not at all. Raises CoreError."""
        event = self._crons.complete(event, self.cluster.crons)
        changes = self.cluster.apply(event, self.now)
        self.changes.append(changes)
        self._timers += changes.timers
        return changes

    def durable(self) -> list[Changes]:
        """The changes with rows to commit; the others change memory only."""
        return [changes for changes in self.changes if changes.has_rows]

    def records(self) -> list[Record]:
        return [record for changes in self.changes for record in changes.records]

    def take_timers(self) -> list[Timer]:
        """The timers that were set since this was last called."""
        taken, self._timers = self._timers, []
        return taken

    def woken(self) -> set[str]:
        """The workers with new instructions."""
        return {worker for changes in self.changes for worker in changes.wake}

    @property
    def replan(self) -> bool:
        """Whether something changed that a plan depends on."""
        return any(changes.replan for changes in self.changes)
