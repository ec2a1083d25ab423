"""Baselines of a replay: well-known scheduling policies that are not part of the product.

They know no queues, quotas or evictions. Tasks are placed by the planner's best fit, so that a
comparison is about the order of gangs and not about packing.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.node import GPU
from phalanx.core.reasons import NotEnough
from phalanx.core.time_units import Micros
from phalanx.plan.decisions import Reserve
from phalanx.plan.future_capacity import EndTimes, end_of
from phalanx.plan.model import NEVER, PendingGang, TaskRequest
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.serving.starts import placement
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.delta import PlannerDelta
from phalanx.plan.state.planner_state import PlannerState
from phalanx.sim.replay import ReplayPlan


class BaselineRule(StrEnum):
    FCFS = "fcfs"  #: the first gang that does not fit blocks all others
    EASY = "easy"  #: the others start if they do not delay the first one that does not fit
    SHORTEST_FIRST = "sjf"  #: every gang that fits starts, the shortest time limit first
    #: Every gang that fits starts, that of the queue with the least GPU time so far first.
    LEAST_ATTAINED_SERVICE = "las"


#: Gangs of a line have the same queue, request and size; for EASY also the same time limit.
_Line = tuple[str, TaskRequest, int, Micros | None]
_Key = tuple[float, Micros, str]


class Baseline:
    def __init__(self, cluster: Cluster, rule: BaselineRule) -> None:
        self._cluster = cluster
        self._rule = rule
        self._state = PlannerState.of(cluster)
        self._delta = PlannerDelta()
        self._added: list[str] = []
        #: The pending gangs of each line, the first to start first: (key, job).
        self._lines: dict[_Line, list[tuple[_Key, str]]] = {}
        #: By queue: GPU time of its gangs up to the last plan.
        self._attained: dict[str, float] = {}
        self._planned_at: Micros = 0

    def observe(self, changes: Changes) -> None:
        self._delta.note(self._cluster, changes)
        self._added += changes.added

    def plan(self, now: Micros) -> ReplayPlan:
        self._attain(now)
        delta, self._delta = self._delta, PlannerDelta()
        self._state.update(delta)
        gangs = self._state.pending.gangs
        for job in self._added:
            insort(self._lines.setdefault(self._line(gangs[job]), []), (self._key(gangs[job]), job))
        self._added.clear()
        started = list(self._start(now, gangs))
        pending = next((line[0][1] for line in self._lines.values() if line), None)
        reasons = {}
        if pending is not None:
            gang = gangs[pending]
            resources = gang.roles[0].request.resources
            reasons[pending] = NotEnough(gang.need, 0, next((r for r, _ in resources), "slots"))
        return ReplayPlan([Reserve((placement(trial),)) for trial in started], reasons)

    # The order of gangs

    def _line(self, gang: PendingGang) -> _Line:
        duration = gang.duration if self._rule is BaselineRule.EASY else None
        return gang.queue, gang.roles[0].request, gang.size, duration

    def _key(self, gang: PendingGang) -> _Key:
        """The place of a gang in its line."""
        is_shortest_first = self._rule is BaselineRule.SHORTEST_FIRST
        first = end_of(0, gang.duration) if is_shortest_first else 0
        return first, gang.created_at, gang.job

    def _rank(self, queue: str, key: _Key) -> _Key:
        """The place of a line's first gang among the first gangs of all lines."""
        if self._rule is BaselineRule.LEAST_ATTAINED_SERVICE:
            return self._attained.get(queue, 0.0), *key[1:]
        return key

    def _attain(self, now: Micros) -> None:
        """Add the GPU time that each queue has used since the last plan."""
        for queue, used in self._state.running.used.items():
            more = used.get(GPU, 0) * (now - self._planned_at)
            self._attained[queue] = self._attained.get(queue, 0.0) + more
        self._planned_at = now

    # Starting gangs

    def _start(self, now: Micros, gangs: Mapping[str, PendingGang]) -> Iterator[PlacementTrial]:
        """Place gangs in order. A line of which the first gang does not fit is left out."""
        capacity = self._state.at(now).present.fork()
        first_blocked: _FirstBlocked | None = None
        lines = enumerate(self._lines.items())
        heap = [(self._rank(line[0], entries[0][0]), n, line) for n, (line, entries) in lines]
        heapq.heapify(heap)
        while heap:
            _, number, line = heapq.heappop(heap)
            entries = self._lines[line]
            gang = gangs[entries[0][1]]
            beside = () if first_blocked is None else first_blocked.beside(gang, now)
            trial = PlacementTrial(gang, (capacity, *beside))
            if trial.place_minimum():
                yield trial
                del entries[0]
                if entries:
                    heapq.heappush(heap, (self._rank(gang.queue, entries[0][0]), number, line))
                else:
                    del self._lines[line]
            elif self._rule is BaselineRule.FCFS:
                return
            elif self._rule is BaselineRule.EASY and first_blocked is None:
                first_blocked = _FirstBlocked(gang, capacity, EndTimes(self._state.running))


class _FirstBlocked:
    """The reserved start of the first gang that does not fit, as in EASY backfill."""

    def __init__(self, gang: PendingGang, capacity: FreeCapacity, ends: EndTimes) -> None:
        times = ends.times

        def placed_at(position: int) -> FreeCapacity | None:
            free = capacity.fork()
            ends.free_by(times[position], free)
            return free if PlacementTrial(gang, (free,)).place_minimum() else None

        first = bisect_left(range(len(times)), 1, key=lambda n: placed_at(n) is not None)
        #: The time of the start, and what is free then besides the gang; `NEVER` if it is unknown.
        self._at: Micros = times[first] if first < len(times) else NEVER
        self._spare = placed_at(first) if first < len(times) else None

    def beside(self, gang: PendingGang, now: Micros) -> Sequence[FreeCapacity]:
        """The capacities besides the present one that a gang must fit into to start now."""
        is_over = end_of(now, gang.duration) <= self._at
        return () if is_over or self._spare is None else (self._spare,)
