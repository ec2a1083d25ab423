"""The cluster as the planner sees it, kept up to date at the cost of what changed.

Turns are noted when they are durable, so a plan never rests on what may yet be lost. What is noted
is put into the picture only between two plans: the one that is being made reads it in a thread.
"""

from typing import TypeVar

from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.spec import Micros
from phalanx.engine.turn import Turn
from phalanx.plan.snapshot import Snapshot

T = TypeVar("T")


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
        _bring_up_to_date(self._gangs, self._new_gangs)
        _bring_up_to_date(self._nodes, self._new_nodes)
        _bring_up_to_date(self._queues, self._new_queues)
        return Snapshot(now, self._gangs, self._nodes, self._queues, starve_after)


def _bring_up_to_date(known: dict[str, T], changed: dict[str, T | None]) -> None:
    for key, value in changed.items():
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value
    changed.clear()
