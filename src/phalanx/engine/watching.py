"""What an engine tells those who watch it, besides its turns: for logs and metrics.

A watcher is called on the loop and must be quick; it decides nothing.
"""

from typing import Protocol

from phalanx.core.cluster import Cluster
from phalanx.plan.snapshot import Plan, Snapshot
from phalanx.store.protocol import Leader


class Watcher(Protocol):
    def leading(self, term: int, cluster: Cluster) -> None:
        """Memory was filled from the store; also said when it had to be filled again."""

    def standing_by(self, leader: Leader | None) -> None:
        """Asked for the lead and did not get it; said at every attempt."""

    def stepped_down(self, term: int, why: str) -> None: ...

    def store_failed(self, what: str) -> None:
        """The store did not do what was asked of it; it will be asked again."""

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        """A turn is durable: so many commands were answered, so many changes written."""

    def planned(self, seconds: float, snapshot: Snapshot, made: Plan) -> None: ...

    def rejected(self, cause: str) -> None:
        """A decision no longer held when it came to be applied."""

    def braked(self) -> None:
        """So many workers were lost at once that nothing is drained for them."""


class Unwatched:
    """Nobody watches."""

    def leading(self, term: int, cluster: Cluster) -> None:
        pass

    def standing_by(self, leader: Leader | None) -> None:
        pass

    def stepped_down(self, term: int, why: str) -> None:
        pass

    def store_failed(self, what: str) -> None:
        pass

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        pass

    def planned(self, seconds: float, snapshot: Snapshot, made: Plan) -> None:
        pass

    def rejected(self, cause: str) -> None:
        pass

    def braked(self) -> None:
        pass


UNWATCHED = Unwatched()
