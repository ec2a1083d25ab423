"""What an engine reports about itself besides its turns, for logs and metrics.

The methods are called on the event loop and must be quick. They influence nothing.
"""

from typing import Protocol

from phalanx.core.cluster import Cluster
from phalanx.plan.decisions import Plan
from phalanx.store.protocol import Leader


class Telemetry(Protocol):
    def leading(self, term: int, cluster: Cluster) -> None:
        """The cluster was loaded from the store; called again after a failed commit."""

    def standing_by(self, leader: Leader | None) -> None:
        """Another server leads; called with every try to take over."""

    def stepped_down(self, term: int, reason: str) -> None: ...

    def store_failed(self, error: str) -> None:
        """The store refused a call or did not answer; the engine tries again."""

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        """A turn is durable: this many commands were answered and changes written."""

    def planned(self, seconds: float, plan: Plan) -> None: ...

    def rejected(self, cause: str) -> None:
        """A decision of a plan no longer applied when it was carried out."""

    def braked(self) -> None:
        """Too many workers fell silent at once; none of them is declared lost for now."""

    def timer_refused(self, event: str, error: str) -> None:
        """A timer broke a rule of the core: a bug. The timer is dropped and changed nothing."""

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        """Output of tasks was stored, and this much older output was dropped for it."""


class TelemetryFanout:
    """Passes every report to each receiver."""

    def __init__(self, *receivers: Telemetry) -> None:
        self._receivers = receivers

    def leading(self, term: int, cluster: Cluster) -> None:
        for each in self._receivers:
            each.leading(term, cluster)

    def standing_by(self, leader: Leader | None) -> None:
        for each in self._receivers:
            each.standing_by(leader)

    def stepped_down(self, term: int, reason: str) -> None:
        for each in self._receivers:
            each.stepped_down(term, reason)

    def store_failed(self, error: str) -> None:
        for each in self._receivers:
            each.store_failed(error)

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        for each in self._receivers:
            each.committed(seconds, commands, changes)

    def planned(self, seconds: float, plan: Plan) -> None:
        for each in self._receivers:
            each.planned(seconds, plan)

    def rejected(self, cause: str) -> None:
        for each in self._receivers:
            each.rejected(cause)

    def braked(self) -> None:
        for each in self._receivers:
            each.braked()

    def timer_refused(self, event: str, error: str) -> None:
        for each in self._receivers:
            each.timer_refused(event, error)

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        for each in self._receivers:
            each.output_kept(size_bytes, dropped_bytes)


NO_TELEMETRY = TelemetryFanout()
