"""The cluster as the planner sees it.

It is updated at the cost of what has changed and forked at the cost of a few small copies. A plan
reads it at one time and changes nothing that a later plan could notice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.reasons import NeverFits, Reason
from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import Micros
from phalanx.plan.decisions import Plan, ReservedStart
from phalanx.plan.explain.shortage import never_fits
from phalanx.plan.fairshare.queue_tree import QueueLayout, with_unlisted
from phalanx.plan.fairshare.unused_shares import UnusedShares
from phalanx.plan.model import OrderKey, PendingGang, PlannerPolicy, RunningGang
from phalanx.plan.pending import Bucket, PendingGangs
from phalanx.plan.pending_order import QueueOrder
from phalanx.plan.preemption.search_budget import SearchCursor
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.forkable import ForkableDict
from phalanx.plan.state.from_cluster import Translator, node_spec
from phalanx.plan.state.group_members import GroupMembers
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.plan.state.placement_rules import PlacedTasks
from phalanx.plan.state.running import RunningGangs
from phalanx.plan.wait_times import WaitTimes

T = TypeVar("T")

#: Rows of the node table. A job that requests a further resource, which no node has, gets none.
ROW_LIMIT = 256
#: The state is made anew when it keeps more answers than this, most of them about ended jobs.
KEPT_ANSWERS = 10_000


class Moment(NamedTuple):
    """A planner state at one time, to be read and not changed."""

    now: Micros
    policy: PlannerPolicy
    queues: Mapping[str, Queue]
    layout: QueueLayout  #: of these queues, and of those that gangs use without being listed
    pending: PendingGangs
    running: RunningGangs
    table: NodeTable
    #: What is free now, and what would be free if nothing ran.
    present: FreeCapacity
    empty: FreeCapacity
    #: Of the last plan: its reserved starts, and where its searches for victims ended.
    reserved_starts: tuple[ReservedStart, ...]
    cursor: SearchCursor
    wait_times: WaitTimes
    unused_shares: UnusedShares
    capacity_version: object

    def in_order(self) -> Mapping[str, QueueOrder]:
        """By queue: the buckets of its pending gangs in their order."""
        return self.pending.in_order(self.policy, self.now)

    def never_fitting(self) -> dict[Bucket, Reason]:
        """The buckets whose gangs never start: what the empty cluster lacks for them, or the limit
        or quota that each of them exceeds."""
        never: dict[Bucket, Reason] = {}
        version = (self.capacity_version, self.layout)
        for order in self.in_order().values():
            if order.never is None or order.never[0] != version:
                reasons = ((bucket, self.never_fits(bucket)) for _, _, bucket in order.keyed)
                lacking = {bucket: reason for bucket, reason in reasons if reason is not None}
                order.never = (version, lacking)
            never.update(order.never[1])
        return never

    def never_fits(self, bucket: Bucket) -> Reason | None:
        """What the empty cluster lacks for the gangs of a bucket, or the limit or quota that each
        of them exceeds. Computed once for each version of the empty cluster and of the queues."""
        known, version = bucket.never, (self.capacity_version, self.layout)
        if known is None or known[0] != version:
            known = bucket.never = (version, self._never_starts(bucket))
        return known[1]

    def _never_starts(self, bucket: Bucket) -> Reason | None:
        lacking = never_fits((bucket.first,), self.empty)
        if lacking is not None:
            return lacking
        return self.layout.exceeded_by(
            bucket.first, bucket.amounts(self.table)[0], [*self.table.rows]
        )


class PlannerState:
    def __init__(
        self, policy: PlannerPolicy | None = None, settings: CoreSettings | None = None
    ) -> None:
        """An empty cluster."""
        self.policy = policy or PlannerPolicy()
        #: The core's gangs and nodes that the rest was translated from.
        self.gangs: ForkableDict[Gang] = ForkableDict()
        self.nodes: ForkableDict[Node] = ForkableDict()
        self.queues: Mapping[str, Queue] = {}
        self.pending = PendingGangs(shortest_first=OrderKey.SHORTEST in self.policy.order)
        self.table = NodeTable()
        self.running = RunningGangs(self.table)
        self.reserved_starts: tuple[ReservedStart, ...] = ()
        self.cursor = SearchCursor()
        self.wait_times = WaitTimes()
        self.unused_shares = UnusedShares()
        self._present = FreeCapacity(self.table)
        self._empty = FreeCapacity(self.table, empty=True)
        by_user = OrderKey.USER in self.policy.order
        self._translate = Translator(settings or CoreSettings(), by_user=by_user)
        self._members = GroupMembers()
        #: Replaced when the capacity of the empty cluster changes.
        self._capacity_version = object()
        self._shape: tuple[int, ...] = ()
        #: The queues, and what they depend on.
        self._layout: tuple[tuple[object, ...], QueueLayout] | None = None
        #: Jobs that request a resource without a row.
        self._rowless: frozenset[str] = frozenset()
        self._answer_limit = KEPT_ANSWERS

    @classmethod
    def of(cls, cluster: Cluster, policy: PlannerPolicy | None = None) -> "PlannerState":
        """The state of a whole cluster."""
        state = cls(policy, cluster.settings)
        state.update(PlannerDelta.of(cluster))
        return state

    def fork(self) -> "PlannerState":
        """An equal state. Later changes of either one do not show in the other.

        A fork may be used in another thread while this state goes on, once `fork` has returned.
        """
        fork = PlannerState.__new__(PlannerState)
        vars(fork).update(vars(self))
        fork.gangs, fork.nodes = self.gangs.fork(), self.nodes.fork()
        fork.pending = self.pending.fork()
        fork.table = self.table.fork()
        fork.running = self.running.fork(fork.table)
        fork._present = self._present.on(fork.table)  # noqa: SLF001
        fork._empty = self._empty.on(fork.table)  # noqa: SLF001
        fork._members = self._members.fork()  # noqa: SLF001
        return fork

    def at(self, now: Micros) -> Moment:
        """What a plan for that time reads."""
        pending = self.pending.at(now)
        return Moment(
            now,
            self.policy,
            self.queues,
            self._layout_with(pending),
            pending,
            self.running,
            self.table,
            self._present,
            self._empty,
            self.reserved_starts,
            self.cursor,
            self.wait_times,
            self.unused_shares,
            self._capacity_version,
        )

    def _layout_with(self, pending: PendingGangs) -> QueueLayout:
        """The layout of all queues. Made anew only when they have changed."""
        used = {*pending.requested, *self.running.used, *self.running.returning}
        used |= {gang.queue for gang in pending.grouped.values()}
        unlisted = frozenset(used.difference(self.queues))
        key = (unlisted, len(self.table.rows))
        if self._layout is None or self._layout[0] != key:
            queues = with_unlisted(self.queues, sorted(unlisted))
            self._layout = (key, QueueLayout(queues, self.table))
        return self._layout[1]

    def accept(self, plan: Plan) -> None:
        """Let the next plan go on from this one."""
        self.reserved_starts, self.cursor = plan.reserved_starts, plan.cursor
        self.unused_shares = plan.unused_shares
        starting = [self.pending.gangs[each.job] for each in plan.reserved()]
        self.wait_times = self.wait_times.after(
            (gang.size, plan.at - gang.since)
            for gang in starting
            if gang.since is not None and gang.need and not gang.is_repair
        )
        self.pending.advance(plan.at)

    # From the cluster

    def update(self, delta: PlannerDelta) -> None:
        """Take over what has changed in the cluster."""
        if self.table.computed > self._answer_limit:
            self._make_anew()
        if delta.queues is not None:
            self.set_queues(delta.queues)
        _merge(self.gangs, delta.gangs)
        _merge(self.nodes, delta.nodes)
        rows = len(self.table.rows)
        # New nodes come before gangs that run on them, and removed nodes after gangs that left.
        self.put_nodes({n: node_spec(node) for n, node in delta.nodes.items() if node is not None})
        related: set[str] = set()
        if len(self.table.rows) > rows:
            related |= self._rowless & self.gangs.keys()
        for job, gang in delta.gangs.items():
            related |= self._members.put(job, gang)
        for job, gang in delta.gangs.items():
            self._take(job, gang)
        for job in related - delta.gangs.keys():
            self._take(job, self.gangs[job])
        for name, node in delta.nodes.items():
            if node is None:
                self.remove_node(name)

    def _make_anew(self) -> None:
        """Forget what was computed for jobs that have ended."""
        fresh = PlannerState(self.policy)
        fresh._translate = self._translate.renewed()
        fresh.update(PlannerDelta(dict(self.gangs), dict(self.nodes), dict(self.queues)))
        fresh.pending.advance(self.pending.now)
        fresh.reserved_starts, fresh.cursor = self.reserved_starts, self.cursor
        fresh.wait_times, fresh.unused_shares = self.wait_times, self.unused_shares
        fresh._answer_limit = max(KEPT_ANSWERS, 2 * fresh.table.computed)
        vars(self).update(vars(fresh))

    def _take(self, job: str, gang: Gang | None) -> None:
        pending = running = None
        if gang is not None:
            pending = self._translate.pending_gang(gang, self.nodes, self._members.of(job))
            running = self._translate.running_gang(gang)
        if job in self._rowless:
            self._rowless -= {job}
        if pending is not None and (lacking := self._without_row(pending)) is not None:
            self._rowless |= {job}
            pending = replace(pending, ineligible=pending.ineligible or lacking)
        if pending is None:
            self.remove_pending(job)
        else:
            self.put_pending(pending)
        if running is None:
            self.remove_running(job)
        else:
            self.put_running(running)

    def _without_row(self, gang: PendingGang) -> Reason | None:
        """A resource that no node has, of a gang for which there is no row left."""
        if len(self.table.rows) < ROW_LIMIT:
            return None
        for role in gang.roles:
            for resource, amount in role.request.resources:
                if resource not in self.table.rows:
                    return NeverFits(resource, amount, 0, per_task=True)
        return None

    # In the planner's terms

    def put_node(self, name: str, spec: NodeSpec) -> None:
        self.put_nodes({name: spec})

    def put_nodes(self, specs: Mapping[str, NodeSpec]) -> None:
        """Add nodes, or replace them by new versions."""
        changed: list[int] = []
        resized: list[int] = []
        for name, spec in specs.items():
            use, at = self._use_of(name), self.table.put_use(name, spec)
            if at is None:
                size = self._size_of(name)
                at = self.table.put(name, spec)
                if size != self._size_of(name):
                    resized.append(at)
                    continue
            if use != self._use_of(name):
                changed.append(at)
        self._note_changes(changed, resized)

    def remove_node(self, name: str) -> None:
        if name in self.table.index:
            self._note_changes((), [self.table.remove(name)])

    def _size_of(self, name: str) -> object:
        at = self.table.index.get(name)
        if at is None:
            return None
        facts = self.table.facts(at)
        return self.table.closed.get(at), self.table.capacity[:, at].tobytes(), facts

    def _use_of(self, name: str) -> object:
        at = self.table.index.get(name)
        if at is None:
            return None
        return self.table.free[:, at].tobytes(), self.table.partial.get(at)

    def _note_changes(self, changed: Iterable[int], resized: Sequence[int]) -> None:
        """Count that tasks have changed what is free on nodes, or the size of other nodes has
        changed."""
        self._adapt_to_shape()
        if resized:
            self._capacity_version = object()
        for capacity, nodes in ((self._present, [*changed, *resized]), (self._empty, resized)):
            if nodes:
                capacity.note(np.array(nodes))
            if capacity.is_worn:
                capacity.forget()

    def _adapt_to_shape(self) -> None:
        """Drop what was computed over arrays that have grown."""
        if self.table.free.shape != self._shape:
            self._shape = self.table.free.shape
            self.running.widen()
            self._present.forget()
            self._empty.forget()

    def set_placed(self, placed: PlacedTasks) -> None:
        """Let rules between tasks apply. The owner of `placed` keeps it up to date."""
        self._present.placed = placed

    def put_pending(self, gang: PendingGang) -> None:
        # Every requested resource has its row before a plan reads the table.
        if gang.ineligible is None:
            for role in gang.roles:
                self.table.vector(role.request.resources)
            self._adapt_to_shape()
        self.pending.put(gang)

    def remove_pending(self, job: str) -> None:
        if job in self.pending.gangs:
            self.pending.remove(job)

    def put_running(self, gang: RunningGang) -> None:
        self.running.put(gang)
        self._adapt_to_shape()

    def remove_running(self, job: str) -> None:
        self.running.remove(job)

    def set_queues(self, queues: Mapping[str, Queue]) -> None:
        self.queues, self._layout = queues, None
        for queue in queues.values():
            for resource in (*queue.quota, *queue.limit):
                self.table.row(resource)
        self._adapt_to_shape()


def _merge(rows: ForkableDict[T], changed: Mapping[str, T | None]) -> None:
    for key, row in changed.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
