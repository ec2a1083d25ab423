"""The cluster as the planner sees it, updated at the cost of what has changed."""

from collections.abc import Mapping

import numpy as np

from phalanx.core.changes import merge
from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import Micros
from phalanx.plan.decisions import Plan, ReservedStart
from phalanx.plan.explain.shortage import never
from phalanx.plan.model import PendingGang, PlannerPolicy, RunningGang
from phalanx.plan.pending import PendingGangs
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.from_cluster import Translator, node_spec
from phalanx.plan.state.group_members import GroupMembers
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.plan.state.running import RunningGangs


class PlannerState:
    def __init__(
        self, policy: PlannerPolicy | None = None, settings: CoreSettings | None = None
    ) -> None:
        """An empty cluster."""
        self.policy = policy or PlannerPolicy()
        self.now: Micros = 0
        #: The core's gangs and nodes that the rest was translated from.
        self.gangs: dict[str, Gang] = {}
        self.nodes: dict[str, Node] = {}
        self.queues: Mapping[str, Queue] = {}
        self.pending = PendingGangs()
        self.table = NodeTable()
        self.running = RunningGangs(self.table)
        #: What is free now, and what would be free if nothing ran.
        self.present = FreeCapacity(self.table)
        self.empty = FreeCapacity(self.table, empty=True)
        #: The reserved starts of the last plan, and where its searches for victims ended.
        self.reserved_starts: tuple[ReservedStart, ...] = ()
        self.cursor = 0
        self._translate = Translator(settings or CoreSettings())
        self._members = GroupMembers()
        #: The capacity of the empty cluster has changed since buckets were last judged by it.
        self._resized = True
        self._shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster, policy: PlannerPolicy | None = None) -> "PlannerState":
        """The state of a whole cluster."""
        state = cls(policy, cluster.settings)
        state.now = cluster.loaded_at
        state.update(PlannerDelta.of(cluster))
        return state

    # From the cluster

    def update(self, delta: PlannerDelta) -> None:
        """Take over what has changed in the cluster."""
        if delta.queues is not None:
            self.set_queues(delta.queues)
        merge(self.gangs, delta.gangs)
        merge(self.nodes, delta.nodes)
        # New nodes come before gangs that run on them, and removed nodes after gangs that left.
        for name, node in delta.nodes.items():
            if node is not None:
                self.put_node(name, node_spec(node))
        near: set[str] = set()
        for job, gang in delta.gangs.items():
            near |= self._members.put(job, gang)
        for job, gang in delta.gangs.items():
            self._take(job, gang)
        for job in near - delta.gangs.keys():
            self._take(job, self.gangs[job])
        for name, node in delta.nodes.items():
            if node is None:
                self.remove_node(name)

    def _take(self, job: str, gang: Gang | None) -> None:
        pending = running = None
        if gang is not None:
            pending = self._translate.pending_gang(gang, self.nodes, self._members.of(job))
            running = self._translate.running_gang(gang)
        if pending is None:
            self.remove_pending(job)
        else:
            self.put_pending(pending)
        if running is None:
            self.remove_running(job)
        else:
            self.put_running(running)

    def accept(self, plan: Plan) -> None:
        """Let the next plan go on from this one."""
        self.reserved_starts, self.cursor = plan.reserved_starts, plan.cursor

    # In the planner's terms

    def put_node(self, name: str, machine: NodeSpec) -> None:
        size, state = self._size_of(name), self._state_of(name)
        at = self.table.put(name, machine)
        if size != self._size_of(name):
            self._resized = True
        elif state == self._state_of(name):
            return
        self._touched(at)

    def remove_node(self, name: str) -> None:
        if name in self.table.index:
            self._touched(self.table.remove(name))
            self._resized = True

    def _size_of(self, name: str) -> object:
        at = self.table.index.get(name)
        if at is None:
            return None
        labels = self.table.labels(at)
        return bool(self.table.open[at]), self.table.capacity[:, at].tobytes(), labels

    def _state_of(self, name: str) -> object:
        at = self.table.index.get(name)
        if at is None:
            return None
        return self.table.free[:, at].tobytes(), self.table.partial.get(at)

    def _touched(self, at: int) -> None:
        self._fit_shape()
        for capacity in (self.present, self.empty):
            capacity.note(np.array([at]))
            if capacity.is_worn:
                capacity.forget()

    def _fit_shape(self) -> None:
        """Drop what was computed over arrays that have grown."""
        if self.table.free.shape != self._shape:
            self._shape = self.table.free.shape
            self.running.widen()
            self.present.forget()
            self.empty.forget()

    def put_pending(self, gang: PendingGang) -> None:
        # Every requested resource has its row before a plan reads the table.
        for part in gang.roles:
            self.table.vector(part.request.resources)
        self._fit_shape()
        self.pending.put(gang, self.now)

    def remove_pending(self, job: str) -> None:
        if job in self.pending.gangs:
            self.pending.remove(job)

    def put_running(self, gang: RunningGang) -> None:
        self.running.put(gang)
        self._fit_shape()

    def remove_running(self, job: str) -> None:
        self.running.remove(job)

    def set_queues(self, queues: Mapping[str, Queue]) -> None:
        self.queues = queues
        for queue in queues.values():
            for resource in (*queue.quota, *queue.limit):
                self.table.row(resource)
        self._fit_shape()

    def queues_in_use(self) -> list[str]:
        """The queues of pending and running gangs."""
        pending, running = self.pending, self.running
        apart = (*pending.grouped.values(), *pending.growing.values())
        names = {*pending.wanted, *(gang.queue for gang in apart)}
        return sorted(names | {*running.used, *running.returning})

    def at(self, now: Micros) -> "PlannerState":
        """The same state at a later time."""
        self.now = now
        self.pending.wake(now)
        self._judge()
        return self

    def _judge(self) -> None:
        """Find the buckets that the empty cluster could not serve, where that may have changed."""
        pending = self.pending
        for bucket in pending.buckets.values() if self._resized else pending.new_buckets:
            bucket.never = never((bucket.first,), self.empty)
        self._resized = False
        pending.new_buckets.clear()
