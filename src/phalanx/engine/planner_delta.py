"""What has changed since the last plan, as far as it is durable: no plan rests on what may be lost.

It is gathered on the loop and put into the planner's picture where the planner runs, between two
plans, at the cost of what changed.
"""

import msgspec

from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.spec.job import Micros
from phalanx.engine.turn import Turn
from phalanx.plan.decisions import Plan
from phalanx.plan.state.planner_state import ClusterState


class PlannerDelta(msgspec.Struct):
    """None is gone. Queues are whole, or None if they have not changed."""

    gangs: dict[str, Gang | None] = {}
    nodes: dict[str, Node | None] = {}
    queues: dict[str, Queue] | None = None

    @property
    def size(self) -> int:
        return len(self.gangs) + len(self.nodes)

    def note(self, turn: Turn) -> None:
        cluster = turn.cluster
        for changes in turn.changes:
            self.gangs |= {job: cluster.gangs.get(job) for job in changes.gangs}
            self.nodes |= {worker: cluster.nodes.get(worker) for worker in changes.nodes}
            if changes.queues:
                self.queues = dict(cluster.queues)


def plan_anew(picture: ClusterState, news: PlannerDelta, now: Micros) -> Plan:
    """Bring the picture up to date and plan from it."""
    picture.update(news.gangs, news.nodes, news.queues)
    return picture.plan(now)
