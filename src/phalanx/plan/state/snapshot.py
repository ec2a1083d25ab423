"""The cluster as the planner sees it, kept up to date at the cost of what changed.

A plan only reads it. What it works out about requests and nodes stays for the next plan.
"""

from collections.abc import Mapping

import numpy as np

from phalanx.core.model import Queue
from phalanx.core.spec.job import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.explain.shortage import never
from phalanx.plan.model import PendingGang, PlannerPolicy, RunningGang
from phalanx.plan.pending import PendingGangs
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.plan.state.running import RunningGangs


class Snapshot:
    def __init__(self, policy: PlannerPolicy | None = None) -> None:
        self.policy = policy or PlannerPolicy()
        self.now: Micros = 0
        self.queues: Mapping[str, Queue] = {}
        self.waiting = PendingGangs()
        self.table = NodeTable()
        self.tenants = RunningGangs(self.table)
        #: What is free now, and what would be if nothing ran.
        self.present = FreeCapacity(self.table)
        self.empty = FreeCapacity(self.table, empty=True)
        #: What the empty cluster can hold has changed since it was last asked.
        self._resized = True
        #: Whose start the last plan kept free, and where its searches for victims ended.
        self.heads: tuple[ReservedStart, ...] = ()
        self.cursor = 0
        self._shape: tuple[int, ...] = ()

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
        for view in (self.present, self.empty):
            view.note(np.array([at]))
            if view.is_worn:
                view.forget()

    def _fit_shape(self) -> None:
        """Arrays that have grown make all that was worked out over them void."""
        if self.table.free.shape != self._shape:
            self._shape = self.table.free.shape
            self.tenants.widen()
            self.present.forget()
            self.empty.forget()

    def put_claim(self, claim: PendingGang) -> None:
        # Rows for all that is asked for exist before a plan forks the table.
        for part in claim.parts:
            self.table.vector(part.ask.resources)
        self._fit_shape()
        self.waiting.put(claim, self.now)

    def remove_claim(self, job: str) -> None:
        if job in self.waiting.claims:
            self.waiting.remove(job)

    def put_tenant(self, tenant: RunningGang) -> None:
        self.tenants.put(tenant)
        self._fit_shape()

    def remove_tenant(self, job: str) -> None:
        self.tenants.remove(job)

    def set_queues(self, queues: Mapping[str, Queue]) -> None:
        self.queues = queues
        for queue in queues.values():
            for resource in (*queue.quota, *queue.limit):
                self.table.row(resource)
        self._fit_shape()

    def queues_in_use(self) -> list[str]:
        """Those in which anybody waits or has places."""
        waiting, tenants = self.waiting, self.tenants
        apart = (*waiting.grouped.values(), *waiting.growing.values())
        names = {*waiting.wanted, *(claim.queue for claim in apart)}
        return sorted(names | {*tenants.used, *tenants.returning})

    def at(self, now: Micros) -> "Snapshot":
        """The same, at a later time."""
        self.now = now
        self.waiting.wake(now)
        self._judge()
        return self

    def _judge(self) -> None:
        """Find out which lines the cluster could never serve, as far as that may have changed."""
        waiting = self.waiting
        lines = waiting.lines.values() if self._resized else waiting.new_lines
        for line in lines:
            line.never = never((line.first,), self.empty)
        self._resized = False
        waiting.new_lines.clear()
