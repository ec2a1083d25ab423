"""What an engine tells those who watch it, besides its turns: for logs and metrics.

A watcher is called on the loop and must be quick; it decides nothing.
"""

from typing import Protocol

from phalanx.core.cluster import Cluster
from phalanx.plan.decisions import Plan
from phalanx.store.protocol import Leader


class Telemetry(Protocol):
    def leading(self, term: int, cluster: Cluster) -> None:
        """Memory was filled from the store; also said when it had to be filled again."""

    def standing_by(self, leader: Leader | None) -> None:
        """Asked for the lead and did not get it; said at every attempt."""

    def stepped_down(self, term: int, why: str) -> None: ...

    def store_failed(self, what: str) -> None:
        """The store did not do what was asked of it; it will be asked again."""

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        """A turn is durable: so many commands were answered, so many changes written."""

    def planned(self, seconds: float, made: Plan) -> None: ...

    def rejected(self, cause: str) -> None:
        """A decision no longer held when it came to be applied."""

    def braked(self) -> None:
        """So many workers were lost at once that nothing is drained for them."""

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        """So much of what tasks write is durable, and so much older output went for it."""


class TelemetryFanout:
    """Several watchers as one; none at all is one that does not look."""

    def __init__(self, *watchers: Telemetry) -> None:
        self._watchers = watchers

    def leading(self, term: int, cluster: Cluster) -> None:
        for each in self._watchers:
            each.leading(term, cluster)

    def standing_by(self, leader: Leader | None) -> None:
        for each in self._watchers:
            each.standing_by(leader)

    def stepped_down(self, term: int, why: str) -> None:
        for each in self._watchers:
            each.stepped_down(term, why)

    def store_failed(self, what: str) -> None:
        for each in self._watchers:
            each.store_failed(what)

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        for each in self._watchers:
            each.committed(seconds, commands, changes)

    def planned(self, seconds: float, made: Plan) -> None:
        for each in self._watchers:
            each.planned(seconds, made)

    def rejected(self, cause: str) -> None:
        for each in self._watchers:
            each.rejected(cause)

    def braked(self) -> None:
        for each in self._watchers:
            each.braked()

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        for each in self._watchers:
            each.output_kept(size_bytes, dropped_bytes)


UNWATCHED = TelemetryFanout()
