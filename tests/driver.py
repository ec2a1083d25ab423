"""A cluster under a virtual clock, for tests: it keeps the rows, fires the timers, and checks the
invariants, the finality of what has ended, and that its rows give the same cluster back, after
every step."""

import heapq
import itertools
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from phalanx.core import invariants
from phalanx.core.array import Array
from phalanx.core.changes import Changes, merge
from phalanx.core.cluster import Cluster
from phalanx.core.errors import CoreError
from phalanx.core.events import (
    Accepted,
    Claimed,
    Event,
    Exited,
    Inventoried,
    Placed,
    Placement,
    Started,
    Stopped,
    Submitted,
    WorkerRegistered,
)
from phalanx.core.gang import Gang
from phalanx.core.ledger import Account
from phalanx.core.model import (
    Assignment,
    AttemptState,
    Cron,
    ElementBlock,
    Job,
    PendingState,
    Phase,
    Place,
    Protocol,
    Queue,
    Residue,
    Rows,
    Task,
    Worker,
    place_of,
)
from phalanx.core.node import AttemptKey
from phalanx.core.records import Record, job_of, kind_of
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import TERMINAL, UNPLACED, State
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.cron_lookups import CronLookups

S = TypeVar("S", WorkerRegistered, Submitted)


def spec(replicas: int = 1, *, role: dict[str, object] | None = None, **fields: object) -> JobSpec:
    """A job of one role in the native form."""
    worker: dict[str, object] = {"command": ["train"], "replicas": replicas, **(role or {})}
    return job_spec({"roles": {"worker": worker}, **fields})


class Driver:
    def __init__(
        self, settings: CoreSettings | None = None, crons: CronLookups | None = None
    ) -> None:
        self.now: Micros = 1_700_000_000 * SECOND
        self.cluster = Cluster(settings)
        self.lookups = crons or CronLookups()
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[tuple[str, int], Task] = {}
        self.workers: dict[str, Worker] = {}
        self.queues: dict[str, Queue] = {}
        self.residues: dict[AttemptKey, Residue] = {}
        self.accounts: dict[str, Account] = {}
        self.crons: dict[str, Cron] = {}
        self.elements: dict[tuple[str, int], ElementBlock] = {}
        self.records: list[Record] = []
        self._timers: list[tuple[Micros, int, Event]] = []
        self._count = itertools.count()

    # Doing

    def apply(self, event: Event) -> Changes:
        self.now += 1  # no two things happen at the very same time
        changes = self.cluster.apply(self._complete(event), self.now)
        self._keep(changes)
        for timer in changes.timers:
            self._set_timer(timer.at, timer.event)
        invariants.check(self.cluster)
        return changes

    def refuse(self, event: Event, error: type[CoreError] = CoreError) -> str:
        """Check that the event is refused and changes nothing. Returns the message."""
        before = self._picture()
        with pytest.raises(error) as refusal:
            self.cluster.apply(self._complete(event), self.now + 1)
        assert self._picture() == before
        return str(refusal.value)

    def _complete(self, event: Event) -> Event:
        """Add what the engine looks up before it applies an event."""
        return self.lookups.complete(event, self.cluster.crons)

    def _picture(self) -> Any:
        cluster = self.cluster
        return (
            {j: (g.job, list(g.tasks), g.counts) for j, g in cluster.gangs.items()},
            {j: (g.accepted, g.missing, g.progress) for j, g in cluster.gangs.items()},
            {
                name: (
                    n.worker,
                    dict(n.charges),
                    dict(n.gathered),
                    dict(n.used),
                    n.strays,
                    n.inventoried,
                )
                for name, n in cluster.nodes.items()
            },
            dict(cluster.queues),
            dict(cluster.residues),
            dict(cluster.crons),
            cluster.last_seq,
        )

    def _set_timer(self, at: Micros, event: Event) -> None:
        heapq.heappush(self._timers, (at, next(self._count), event))

    def advance(self, seconds: float) -> None:
        """Let time pass and fire what is due, each at its time."""
        end = self.now + int(seconds * SECOND)
        while self._timers and self._timers[0][0] <= end:
            at, _, event = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            self.apply(event)
        self.now = end
        for cron in self.crons.values():
            assert cron.replacing_at is None or cron.unfinished, f"{cron.key} was not replaced"

    def restart(self) -> None:
        """A new leader loads what was kept."""
        self.cluster = Cluster.load(self.rows(), self.now, self.cluster.settings)
        self._timers = []
        for timer in self.cluster.timers():
            self._set_timer(timer.at, timer.event)
        invariants.check(self.cluster)

    def rows(self) -> Rows:
        live = {job.id for job in self.jobs.values() if job.is_live}
        return Rows(
            jobs=[self.jobs[job] for job in sorted(live)],
            tasks=[task for key, task in sorted(self.tasks.items()) if key[0] in live],
            workers=[row for _, row in sorted(self.workers.items())],
            queues=[row for _, row in sorted(self.queues.items())],
            residues=[row for _, row in sorted(self.residues.items())],
            crons=[row for _, row in sorted(self.crons.items())],
            accounts=[row for _, row in sorted(self.accounts.items())],
            elements=[row for key, row in sorted(self.elements.items()) if key[0] in live],
            last_seq=self.records[-1].seq if self.records else 0,
        )

    def _keep(self, changes: Changes) -> None:
        # Only a retried array, and its retried elements, begin again after their end.
        retried = {job for job in changes.added if job in self.jobs}
        assert all(self.jobs[job].spec.array is not None for job in retried)
        for key, task in changes.tasks.items():
            old = None if key[0] in retried else self.tasks.get(key)
            is_final = old is not None and old.state in TERMINAL
            if is_final and old is not None and old.state is State.DONE:
                is_final = self.jobs[task.job].end is not None or task.state not in UNPLACED
            assert not is_final, f"{task.id} is finished and changed"
            self.tasks[key] = task
        for job in changes.jobs.values():
            known = None if job.id in retried else self.jobs.get(job.id)
            assert known is None or known.is_live, f"{job.id} is finished and changed"
            self.jobs[job.id] = job
        merge(self.workers, changes.workers)
        merge(self.queues, changes.queues)
        merge(self.residues, changes.residues)
        self.accounts |= changes.accounts
        merge(self.crons, changes.crons)
        self.elements |= changes.elements
        for record in changes.records:
            assert record.seq == (self.records[-1].seq if self.records else 0) + 1
            self.records.append(record)

    # Shorthand

    def worker(self, name: str, protocol: Protocol = Protocol.SYNC, **fields: object) -> None:
        event = WorkerRegistered(
            name,
            incarnation="1",
            protocol=protocol,
            address=f"{name}.example:7000",
            slots=1 if protocol is Protocol.PLAIN else None,
        )
        self.apply(_with(event, fields))
        if protocol is Protocol.SYNC:
            self.inventory(name)

    def fleet(self, *names: str, **fields: object) -> None:
        """Several agents alike."""
        for name in names:
            self.worker(name, **fields)  # type: ignore[arg-type]

    def plain(self, *names: str, **fields: object) -> None:
        """Several workers that claim."""
        for name in names:
            self.worker(name, Protocol.PLAIN, **fields)

    def inventory(self, worker: str, *tasks: tuple[str, int]) -> None:
        incarnation = self.cluster.nodes[worker].worker.incarnation
        self.apply(Inventoried(worker, incarnation, tasks))

    def submit(self, spec: JobSpec, job: str | None = None, **fields: object) -> str:
        job = job or f"j-{next(self._count):04}"
        self.apply(_with(Submitted(job, spec), fields))
        return job

    def array(self, job: str) -> Array:
        array = self.cluster.gangs[job]
        assert isinstance(array, Array)
        return array

    def place(self, job: str, *workers: str, tasks: list[int] | None = None) -> int:
        """Assign the unplaced tasks in order; returns the epoch."""
        gang = self.gang(job)
        indices = [task.index for task in gang.unplaced()] if tasks is None else tasks
        assignments = tuple(map(Assignment, indices, workers))
        self.apply(Placed((Placement(job, gang.job.version, assignments),)))
        return self.gang(job).job.epoch

    def accept(self, job: str) -> None:
        for task in self.gang(job).unreleased():
            self.apply(Accepted(task.id, task.epoch))

    def start(self, job: str) -> None:
        for task in self.gang(job).started():
            self.apply(Started(task.id, task.epoch))

    def run(self, job: str, *workers: str) -> int:
        """Place, accept and start all unplaced tasks."""
        epoch = self.place(job, *workers)
        self.accept(job)
        self.start(job)
        return epoch

    def exit(self, job: str, index: int, code: int = 0, *, signalled: bool = False) -> Changes:
        task = self.task(job, index)
        return self.apply(Exited(task.id, task.epoch, code, signalled=signalled))

    def fail(self, job: str, index: int) -> Changes:
        return self.exit(job, index, 1)

    def stop(self, job: str, *indices: int) -> None:
        """These tasks, or all that are stopping, have stopped."""
        for index in indices or self.indices(job, State.PREEMPTING):
            task = self.task(job, index)
            self.apply(Stopped(task.id, task.epoch))

    def claim(self, job: str, index: int) -> Changes:
        """The worker that a task is reserved for claims it."""
        return self.apply(Claimed(self.task(job, index).id, self.task(job, index).worker))

    # Asking

    def indices(self, job: str, state: State) -> list[int]:
        return [task.index for task in self.gang(job).tasks if task.state is state]

    def gang(self, job: str) -> Gang:
        return self.cluster.gangs[job]

    def job(self, job: str) -> Job:
        return self.jobs[job]

    def pending(self, job: str) -> PendingState:
        """What the job has while it is pending; empty if it is not."""
        return self.jobs[job].pending or PendingState()

    def attempt_of(self, job: str) -> AttemptState:
        """What is known of the present attempt; empty if there is none."""
        return self.jobs[job].attempt or AttemptState()

    def place_of(self, job: str, index: int) -> Place:
        return place_of(self.tasks[job, index])

    def phase(self, job: str) -> Phase:
        return self.jobs[job].phase

    def task(self, job: str, index: int) -> Task:
        return self.tasks[job, index]

    def states(self, job: str) -> list[State]:
        return [task.state for key, task in sorted(self.tasks.items()) if key[0] == job]

    def kinds(self, job: str) -> list[str]:
        return [kind_of(record) for record in self.records if job_of(record) == job]


def _with(event: S, fields: dict[str, object]) -> S:
    return replace(event, **fields)
