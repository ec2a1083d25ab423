"""The cluster as the planner sees it, kept up to date at the cost of what changed.

Turns are noted when they are durable, so a plan never rests on what may yet be lost. What is noted
is put into the picture only between two plans: the one that is being made reads it in a thread.
"""

from phalanx.core.changes import merge
from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.spec import Micros
from phalanx.engine.turn import Turn
from phalanx.plan.snapshot import Snapshot


class Picture:
    def __init__(self, cluster: Cluster) -> None:
        """Of a cluster that has just been loaded."""
        self._gangs = dict(cluster.gangs)
        self._nodes = dict(cluster.nodes)
        self._queues = dict(cluster.queues)
        # What has changed since the last plan; None is gone.
        self._new_gangs: dict[str, Gang | None] = {}
        self._new_nodes: dict[str, Node | None] = {}
        self._new_queues: dict[str, Queue | None] = {}

    def note(self, turn: Turn) -> None:
        cluster = turn.cluster
        for changes in turn.changes:
            self._new_gangs |= {job: cluster.gangs.get(job) for job in changes.gangs}
            self._new_nodes |= {worker: cluster.nodes.get(worker) for worker in changes.nodes}
            self._new_queues |= {name: cluster.queues.get(name) for name in changes.queues}

    def snapshot(self, now: Micros, starve_after: Micros) -> Snapshot:
        """Not to be asked for while a plan is being made from the last one."""
        merge(self._gangs, self._new_gangs)
        merge(self._nodes, self._new_nodes)
        merge(self._queues, self._new_queues)
        self._new_gangs, self._new_nodes, self._new_queues = {}, {}, {}
        return Snapshot(now, self._gangs, self._nodes, self._queues, starve_after)
