"""A trace replayed: the production planner and core under virtual time, from event to event.

Tasks start the moment they are placed and end after their duration; those that are told to stop do
so a little later, and their work is lost. Nothing is random, so the same trace ends the same way.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from phalanx.core import events
from phalanx.core.changes import Changes
from phalanx.core.cluster import Cluster
from phalanx.core.errors import CoreError
from phalanx.core.ids import split_task
from phalanx.core.model import Protocol as WorkerProtocol
from phalanx.core.model import place_of
from phalanx.core.reasons import Reason
from phalanx.core.spec.job import HOUR, MINUTE, SECOND, JobSpec, Micros
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.engine.planner_loop import event_of
from phalanx.plan.decisions import Decision, Reserve
from phalanx.sim.job_history import JobHistory
from phalanx.sim.traces import Trace, TraceJob

#: A trace begins here, as far as its rows know.
START: Micros = 1_700_000_000 * SECOND
#: How long a task takes to stop once it was told.
STOP: Micros = 5 * SECOND
#: While somebody waits and nothing happens, a plan is made all the same: time changes things, too.
TICK: Micros = 5 * MINUTE
#: So many plans in a row without a decision, while nothing runs or comes, and it is over.
_IDLE_PLANS = 5
#: A worker that takes tasks for its resources, however many they are.
_SLOTS = 1 << 20

# At one moment tasks end before timers fire: a job that ends just at its limit is done.
_END, _TIMER = 0, 1

#: Time limits that people write.
_ROUND: tuple[Micros, ...] = (
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 4, 8, 12)),
    *(n * 24 * HOUR for n in (1, 2, 4, 7, 14, 30, 60, 120)),
)

_Attempt = tuple[str, int]


class Pace(msgspec.Struct, frozen=True):
    """What a trace does not tell: the time limits of its jobs, and how often plans are made."""

    estimate: float = 1.0  #: a limit is so many times the duration
    rounds: bool = False  #: and then the next that people write
    plan_every: Micros = SECOND  #: the least time between two plans while somebody waits

    def limit(self, duration: Micros) -> Micros:
        limit = max(SECOND, round(duration * self.estimate))
        if self.rounds and limit <= _ROUND[-1]:
            limit = _ROUND[bisect_left(_ROUND, limit)]
        return limit


class Planned(NamedTuple):
    decisions: Sequence[Decision]
    reasons: Mapping[str, Reason]  #: of those who are left waiting, or of the first of them


class Planner(Protocol):
    def note(self, changes: Changes) -> None:
        """The cluster has taken these over."""

    def plan(self, now: Micros) -> Planned: ...


class Replay:
    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        planner: Planner,
        pace: Pace | None = None,
    ) -> None:
        pace = pace or Pace()
        self.cluster = cluster
        self.now: Micros = START
        self.history = JobHistory(trace, START)
        self.reasons: Mapping[str, Reason] = {}
        #: Decisions that no longer held when they were applied, by cause. There should be none.
        self.rejected: Counter[str] = Counter()
        self.plans = 0
        self.planned_at: Micros | None = None
        self._planner = planner
        self._pace = pace
        self._jobs = trace.jobs
        self._durations = {job.id: job.duration for job in trace.jobs}
        self._next_job = 0
        self._numbers = count()
        #: What is to come: when, its rank, a number, and an event or an attempt that ends.
        self._due: list[tuple[Micros, int, int, events.Event | _Attempt]] = []
        self._replan = True
        self._someone_waits = False
        self._plan_at: Micros = START
        self._idle_plans = 0
        self._set_up(trace)

    def _set_up(self, trace: Trace) -> None:
        for queue in trace.queues:
            self.apply(events.QueueSet(queue))
        for node in trace.nodes:
            self.apply(register(node.name, node.resources))

    # Time

    def run(self) -> None:
        """To the end: nothing runs, nothing comes, and nobody who waits can be helped."""
        while self.step():
            pass

    def step(self) -> bool:
        """All that happens at the next moment; False if there is no more."""
        at = self._next_at()
        if at is None:
            return False
        self.now = at
        while self._due and self._due[0][0] <= at:
            what = heappop(self._due)[3]
            if isinstance(what, tuple):
                self._end(*what)
            elif isinstance(what, events.Stopped):
                self._stop(what)
            else:
                self.apply(what)
        while self._next_job < len(self._jobs) and START + self._jobs[self._next_job].at <= at:
            self._submit(self._jobs[self._next_job])
            self._next_job += 1
        if at >= self._plan_at and (self._replan or at >= self._plan_at + TICK):
            self._plan()
        return True

    def _next_at(self) -> Micros | None:
        moments = []
        if self._due:
            moments.append(self._due[0][0])
        if self._next_job < len(self._jobs):
            moments.append(START + self._jobs[self._next_job].at)
        if self._replan:
            moments.append(self._plan_at)
        elif self._someone_waits and (moments or self._idle_plans < _IDLE_PLANS):
            moments.append(self._plan_at + TICK)
        return max(self.now, min(moments)) if moments else None

    # What happens

    def apply(self, event: events.Event) -> Changes:
        changes = self.cluster.apply(event, self.now)
        for timer in changes.timers:
            heappush(self._due, (timer.at, _TIMER, next(self._numbers), timer.event))
        if changes.wake:
            self._stop_what_was_told_to(changes)
        if changes.replan:
            self._replan = True
        self._planner.note(changes)
        self.history.observe(changes, self.now)
        return changes

    def happens_at(self, at: Micros, event: events.Event) -> None:
        """Something from outside: a worker is lost, a user changes a priority."""
        heappush(self._due, (at, _TIMER, next(self._numbers), event))

    def _stop_what_was_told_to(self, changes: Changes) -> None:
        for task in changes.tasks.values():
            if task.state is State.PREEMPTING and place_of(task).stopping_at == self.now:
                stopped = events.Stopped(task.id, task.epoch)
                heappush(self._due, (self.now + STOP, _END, next(self._numbers), stopped))

    def _stop(self, event: events.Stopped) -> None:
        """It has stopped, unless its worker was lost in the meantime and it with it."""
        job, index = split_task(event.task)
        gang = self.cluster.gangs.get(job)
        if gang is not None:
            task = gang.tasks[index]
            if task.state is State.PREEMPTING and task.epoch == event.epoch:
                self.apply(event)

    def _submit(self, job: TraceJob) -> None:
        spec = replace(spec_of(job), time_limit=self._pace.limit(job.duration))
        self.apply(events.Submitted(job.id, spec))

    def _end(self, job: str, epoch: int) -> None:
        """The duration of an attempt is over; if it was stopped before, that means nothing."""
        gang = self.cluster.gangs.get(job)
        if gang is None or gang.job.epoch != epoch or gang.job.stopping is not None:
            return
        for task in gang.tasks:
            if task.state is State.RUNNING:
                self.apply(events.Exited(task.id, epoch, code=0))

    # Plans

    def _plan(self) -> None:
        self._replan = False
        plan = self._planner.plan(self.now)
        self.plans += 1
        self.planned_at = self.now
        self.reasons = plan.reasons
        self._someone_waits = next(iter(plan.reasons), None) is not None
        self._plan_at = self.now + (self._pace.plan_every if self._someone_waits else SECOND)
        self._idle_plans = 0 if plan.decisions else self._idle_plans + 1
        for decision in plan.decisions:
            try:
                self.apply(event_of(decision))
            except CoreError as error:
                self.rejected[type(error).__name__] += 1
                continue
            if isinstance(decision, Reserve):
                self._start(placement.job for placement in decision.placements)

    def _start(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            gang = self.cluster.gangs[job]
            for task in gang.tasks:
                if task.state is State.RESERVED:
                    self.apply(events.Claimed(task.id, task.worker))
            ending = (job, gang.job.epoch)
            at = self.now + self._durations[job]
            heappush(self._due, (at, _END, next(self._numbers), ending))


def register(node: str, resources: Mapping[str, int]) -> events.WorkerRegistered:
    """A worker that claims what is placed on it, and is trusted to run it."""
    return events.WorkerRegistered(
        node, "1", WorkerProtocol.PLAIN, node, dict(resources), slots=_SLOTS
    )


def spec_of(job: TraceJob) -> JobSpec:
    return _spec(job.queue, job.priority, job.size, tuple(job.resources.items()))


@lru_cache(maxsize=4096)
def _spec(queue: str, priority: int, size: int, resources: tuple[tuple[str, int], ...]) -> JobSpec:
    """Gangs that are alike share one specification."""
    spec = job_spec({"roles": {"worker": {"command": "replay", "replicas": size}}})
    [role] = spec.roles
    return replace(
        spec, queue=queue, priority=priority, roles=(replace(role, resources=dict(resources)),)
    )
