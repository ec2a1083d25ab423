"""What has changed in the cluster since the planner state was last updated."""

import msgspec

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node


class PlannerDelta(msgspec.Struct):
    """The new version of each gang and node that has changed; None for one that was removed.

    The cluster never changes a gang or node that it has taken over, so a delta may be read in
    another thread.
    """

    gangs: dict[str, Gang | None] = {}
    nodes: dict[str, Node | None] = {}
    queues: dict[str, Queue] | None = None  #: all queues, or None if no queue has changed

    @classmethod
    def of(cls, cluster: Cluster) -> "PlannerDelta":
        """The whole cluster, as a delta to an empty state."""
        return cls(dict(cluster.gangs), dict(cluster.nodes), dict(cluster.queues))

    def copy(self) -> "PlannerDelta":
        return PlannerDelta(self.gangs.copy(), self.nodes.copy(), self.queues)

    def followed_by(self, later: "PlannerDelta") -> "PlannerDelta":
        """Both, one after the other, as one delta."""
        queues = self.queues if later.queues is None else later.queues
        return PlannerDelta(self.gangs | later.gangs, self.nodes | later.nodes, queues)

    @property
    def size(self) -> int:
        return len(self.gangs) + len(self.nodes)

    def note(self, cluster: Cluster, changes: Changes) -> None:
        """Add what these changes did to the cluster."""
        for job in changes.gangs:
            self.gangs[job] = cluster.gangs.get(job)
        for worker in changes.nodes:
            self.nodes[worker] = cluster.nodes.get(worker)
        if changes.queues:
            self.queues = dict(cluster.queues)
