"""The replay of a trace: the production planner and core in virtual time, from event to event.

A task starts when it is placed and ends after its duration. A task that is stopped ends a few
seconds later and its work is lost. Nothing is random: a trace always gives the same result.
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
from phalanx.core.records import JobEvicted
from phalanx.core.spec.job import CheckpointPolicy, JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros
from phalanx.engine.planner_loop import event_of
from phalanx.plan.decisions import Decision, Reserve
from phalanx.sim.job_history import JobHistory
from phalanx.sim.traces import Trace, TraceJob

#: The wall clock at the start of a trace.
START: Micros = 1_700_000_000 * SECOND
#: How long a task takes to stop.
STOP_TIME: Micros = 5 * SECOND
#: While jobs are pending and nothing happens, plans are made at this interval: reservations and
#: starvation depend on time.
IDLE_PLAN_EVERY: Micros = 5 * MINUTE
#: The replay ends after this many plans without a decision, if nothing runs and no job is due.
_MAX_IDLE_PLANS = 5
#: Workers are limited by their resources, not by a number of tasks.
_SLOTS = 1 << 20

# At the same time, tasks end before timers fire: a job that ends exactly at its limit is done.
_END, _TIMER = 0, 1

#: Time limits as users write them.
_USUAL_LIMITS: tuple[Micros, ...] = (
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 4, 8, 12)),
    *(n * 24 * HOUR for n in (1, 2, 4, 7, 14, 30, 60, 120)),
)

_Attempt = tuple[str, int]


class ReplaySettings(msgspec.Struct, frozen=True):
    """The time limits of jobs, which a trace does not have, and the interval of plans."""

    estimate: float = 1.0  #: the ratio of time limits to actual durations
    rounded: bool = False  #: limits are rounded up to those that users write
    plan_every: Micros = SECOND  #: the shortest time between two plans while jobs are pending
    checkpoints: bool = False  #: jobs save a checkpoint when they are stopped, so they can be moved

    def time_limit(self, duration: Micros) -> Micros:
        limit = max(SECOND, round(duration * self.estimate))
        if self.rounded and limit <= _USUAL_LIMITS[-1]:
            limit = _USUAL_LIMITS[bisect_left(_USUAL_LIMITS, limit)]
        return limit


class ReplayPlan(NamedTuple):
    decisions: Sequence[Decision]
    reasons: Mapping[str, Reason]  #: of the pending jobs, or of the first of them
    broken_starts: int = 0  #: reserved starts that this plan could not keep


class Planner(Protocol):
    def observe(self, changes: Changes) -> None:
        """Record what an event has changed in the cluster."""

    def plan(self, now: Micros) -> ReplayPlan: ...


class Replay:
    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        planner: Planner,
        settings: ReplaySettings | None = None,
    ) -> None:
        self.cluster = cluster
        self.now: Micros = START
        self.history = JobHistory(trace, START)
        self.reasons: Mapping[str, Reason] = {}
        #: Decisions that the core rejected, by error. There should be none.
        self.rejected: Counter[str] = Counter()
        self.plans = 0
        self.broken_starts = 0
        #: When gangs were moved to other nodes: the time and the job.
        self.moves: list[tuple[Micros, str]] = []
        self.planned_at: Micros | None = None
        self._planner = planner
        self._settings = settings or ReplaySettings()
        self._jobs = trace.jobs
        self._durations = {job.id: job.duration for job in trace.jobs}
        self._next_job = 0
        self._numbers = count()
        #: The agenda: time, rank at the same time, a number, and an event or an attempt that ends.
        self._agenda: list[tuple[Micros, int, int, events.Event | _Attempt]] = []
        self._replan = True
        self._has_pending = False
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
        """Replay until nothing runs, all jobs were submitted, and no pending job can start."""
        while self.step():
            pass

    def step(self) -> bool:
        """Handle everything that happens at the next time; False at the end of the replay."""
        at = self._next_at()
        if at is None:
            return False
        self.now = at
        while self._agenda and self._agenda[0][0] <= at:
            item = heappop(self._agenda)[3]
            if isinstance(item, tuple):
                self._end(*item)
            elif isinstance(item, events.Stopped):
                self._stop(item)
            else:
                self.apply(item)
        while self._next_job < len(self._jobs) and START + self._jobs[self._next_job].at <= at:
            self._submit(self._jobs[self._next_job])
            self._next_job += 1
        if at >= self._plan_at and (self._replan or at >= self._plan_at + IDLE_PLAN_EVERY):
            self._plan()
        return True

    def _next_at(self) -> Micros | None:
        times = []
        if self._agenda:
            times.append(self._agenda[0][0])
        if self._next_job < len(self._jobs):
            times.append(START + self._jobs[self._next_job].at)
        if self._replan:
            times.append(self._plan_at)
        elif self._has_pending and (times or self._idle_plans < _MAX_IDLE_PLANS):
            times.append(self._plan_at + IDLE_PLAN_EVERY)
        return max(self.now, min(times)) if times else None

    # Events

    def apply(self, event: events.Event) -> Changes:
        changes = self.cluster.apply(event, self.now)
        for timer in changes.timers:
            heappush(self._agenda, (timer.at, _TIMER, next(self._numbers), timer.event))
        if changes.replan:
            self._replan = True
        if changes.gangs or changes.nodes or changes.queues:
            self._observe(changes)
        return changes

    def _observe(self, changes: Changes) -> None:
        if changes.wake:
            self._schedule_stops(changes)
        for record in changes.records:
            if isinstance(record, JobEvicted) and record.moved:
                self.moves.append((self.now, record.job))
        self._planner.observe(changes)
        self.history.observe(changes, self.now)

    def schedule(self, at: Micros, event: events.Event) -> None:
        """Apply an event at a later time, such as the return of a lost worker."""
        heappush(self._agenda, (at, _TIMER, next(self._numbers), event))

    def _schedule_stops(self, changes: Changes) -> None:
        for task in changes.tasks.values():
            if task.state is State.PREEMPTING and place_of(task).stopping_at == self.now:
                stopped = events.Stopped(task.id, task.epoch)
                heappush(self._agenda, (self.now + STOP_TIME, _END, next(self._numbers), stopped))

    def _stop(self, event: events.Stopped) -> None:
        """Apply the stop of a task, unless it was lost with its worker in the meantime."""
        job, index = split_task(event.task)
        gang = self.cluster.gangs.get(job)
        if gang is not None:
            task = gang.tasks[index]
            if task.state is State.PREEMPTING and task.epoch == event.epoch:
                self.apply(event)

    def _submit(self, job: TraceJob) -> None:
        settings = self._settings
        policy = CheckpointPolicy.EACH if settings.checkpoints else CheckpointPolicy.NONE
        spec = replace(
            spec_of(job), time_limit=settings.time_limit(job.duration), checkpoint=policy
        )
        self.apply(events.Submitted(job.id, spec))

    def _end(self, job: str, epoch: int) -> None:
        """End an attempt after its duration, unless it was stopped before."""
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
        self.broken_starts += plan.broken_starts
        self.planned_at = self.now
        self.reasons = plan.reasons
        self._has_pending = next(iter(plan.reasons), None) is not None
        self._plan_at = self.now + (self._settings.plan_every if self._has_pending else SECOND)
        self._idle_plans = 0 if plan.decisions else self._idle_plans + 1
        for decision in plan.decisions:
            try:
                self.apply(event_of(decision))
            except CoreError as error:
                self.rejected[type(error).__name__] += 1
                self._replan = True
                continue
            if isinstance(decision, Reserve):
                self._start(placement.job for placement in decision.placements)

    def _start(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            gang = self.cluster.gangs[job]
            for task in gang.tasks:
                if task.state is State.RESERVED:
                    self.apply(events.Claimed(task.id, task.worker))
            attempt = (job, gang.job.epoch)
            at = self.now + self._durations[job]
            heappush(self._agenda, (at, _END, next(self._numbers), attempt))


def register(node: str, resources: Mapping[str, int]) -> events.WorkerRegistered:
    """The registration of a worker on which a placed task runs at once."""
    return events.WorkerRegistered(
        node, "1", WorkerProtocol.PLAIN, node, dict(resources), slots=_SLOTS
    )


def spec_of(job: TraceJob) -> JobSpec:
    return _spec(job.queue, job.priority, job.size, tuple(job.resources.items()))


@lru_cache(maxsize=4096)
def _spec(queue: str, priority: int, size: int, resources: tuple[tuple[str, int], ...]) -> JobSpec:
    """The specification, shared by all jobs that are alike."""
    spec = job_spec({"roles": {"worker": {"command": "replay", "replicas": size}}})
    [role] = spec.roles
    return replace(
        spec, queue=queue, priority=priority, roles=(replace(role, resources=dict(resources)),)
    )
