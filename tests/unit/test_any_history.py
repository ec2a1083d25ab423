"""Arbitrary histories: legal and illegal events in any order, with restarts of the leader between.

After every step the invariants hold (the driver checks them), a refused event has changed nothing,
and the rows alone give the same cluster back. In the end, on a healthy cluster, every job ends.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.driver import Driver

from phalanx.core import events
from phalanx.core.array import Array
from phalanx.core.cluster import Cluster
from phalanx.core.errors import CoreError
from phalanx.core.model import ENDED, Assignment, Blob, GangMembers, Protocol, Queue, Task
from phalanx.core.spec.job import DEPENDENCY_FIELDS
from phalanx.core.spec.validation import job_spec
from phalanx.core.spec.watch import AbnormalKind
from phalanx.core.states import State

WORKERS = st.sampled_from(["a", "b", "c", "d"])
#: One for each task of the largest gang: seven that awaited an eighth, and a part of six.
ENOUGH = [f"new-{n}" for n in range(13)]
#: Picks one of whatever there is.
PICK = st.integers(0, 1000)
OFF_BY = st.sampled_from([0, 0, 0, 0, 0, -1, 1])

ROLES = st.fixed_dictionaries(
    {"command": st.just("train"), "replicas": st.integers(1, 3)},
    optional={
        "min": st.integers(0, 3),
        "resources": st.sampled_from([{}, {"gpu": 1}, {"gpu": 0.5}, {"gpu": 2}, {"cpu": 1}]),
        "per_node": st.just(1),
    },
)
SPECS = st.fixed_dictionaries(
    {"roles": st.dictionaries(st.sampled_from(["ps", "worker"]), ROLES, min_size=1, max_size=2)},
    optional={
        "restart": st.sampled_from(["gang", "task", "never"]),
        "match": st.sampled_from(
            ["only-waiting", "waiting-and-running", "waiting-running-succeed", "once-satisfied"]
        ),
        "checkpoint": st.sampled_from(["none", "each", "all"]),
        "on_partial_completion": st.sampled_from(["restart", "fail"]),
        "max_retries": st.integers(0, 3),
        "time_limit": st.just("5m"),
        "schedule_timeout": st.just("10m"),
        "stall_after": st.just("2m"),
        "watch": st.sampled_from([{"loss": {"nan": "restart"}}, {"loss": {"nan": "fail"}}]),
        "complete_when": st.sampled_from(["all", "ps", "worker"]),
        "name": st.sampled_from(["one", "two"]),
        "min_available": st.integers(1, 6),
        "array": st.sampled_from(["0-2", "0-4%1", "1,3%2"]),
    },
)

A_NAN = events.AbnormalValue("loss", AbnormalKind.NAN, step=7)
LIVELY = st.sampled_from([State.RESERVED, State.RUNNING, State.PREEMPTING, State.PENDING])
REPORTS: list[Callable[[str, int], events.Event]] = [
    events.Accepted,
    events.Started,
    events.Stopped,
    events.Vanished,
    lambda task, epoch: events.Progressed(task, epoch, step=epoch, safe=True),
    lambda task, epoch: events.ValuesAbnormal(task, epoch, (A_NAN,)),
    lambda task, epoch: events.SpawnFailed(task, epoch, "no such file"),
    lambda task, epoch: events.Exited(task, epoch, 0),
    lambda task, epoch: events.Exited(task, epoch, 0, signalled=True),
    lambda task, epoch: events.Exited(task, epoch, 1),
    lambda task, epoch: events.Exited(task, epoch, signal=9),
]
BEFALLS: list[Callable[[str], events.Event]] = [
    events.WorkerLost,
    events.WorkerRemoved,
    events.WorkerReturned,
    lambda worker: events.PollersCounted(worker, 3),
    lambda worker: events.CordonChanged(worker, "a test"),
    lambda worker: events.CordonChanged(worker, None),
]
CRONS = [
    job_spec(
        {
            "name": "often",
            "schedule": {
                "cron": "*/10 * * * *",
                "concurrency": concurrency,
                "keep": {"done": 1, "failed": 0},
            },
            "roles": {"worker": {"command": "x"}},
            "grace": "1s",
        }
    )
    for concurrency in ("allow", "forbid", "replace")
]


def durable(cluster: Cluster) -> Any:
    """Everything that must survive a restart."""
    return (
        {job: (gang.job, gang.tasks, gang.counts) for job, gang in cluster.gangs.items()},
        {job: gang.blocks for job, gang in cluster.gangs.items() if isinstance(gang, Array)},
        {
            name: (
                node.worker,
                set(node.charges),
                {resource: n for resource, n in node.used.items() if n},
                node.devices,
            )
            for name, node in cluster.nodes.items()
        },
        cluster.queues,
        cluster.residues,
        cluster.names,
        {job: others for job, others in cluster.dependants.items() if others},
        cluster.followers,
        cluster.accounts,
        cluster.crons,
        cluster.last_seq,
    )


def everything(cluster: Cluster) -> Any:
    """Also what is only in memory."""
    volatile = {
        job: (gang.accepted, gang.missing, gang.progress) for job, gang in cluster.gangs.items()
    }
    nodes = {name: (node.strays, node.inventoried) for name, node in cluster.nodes.items()}
    return durable(cluster), volatile, nodes


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.blobs = 0
        for name in ("a", "b"):
            self.driver.worker(name, resources={"gpu": 2000, "cpu": 8000})

    # Doing

    def attempt(self, event: events.Event) -> None:
        """Apply it; if it is refused, nothing may have changed."""
        before = everything(self.driver.cluster)
        try:
            self.driver.apply(event)
        except CoreError:
            assert everything(self.driver.cluster) == before

    def some_job(self, pick: int) -> str | None:
        """Any job, but mostly one that has a place."""
        jobs = sorted(self.driver.jobs)
        active = [g.job.id for g in self.driver.cluster.gangs.values() if not g.is_idle]
        if active and pick % 4:
            jobs = active
        return jobs[pick % len(jobs)] if jobs else None

    def some_task(self, pick: int, state: State) -> Task | None:
        """One in that state if there is one, else any, finished ones too."""
        tasks = [task for _, task in sorted(self.driver.tasks.items())]
        tasks = [task for task in tasks if task.state is state] or tasks
        return tasks[pick % len(tasks)] if tasks else None

    @initialize(documents=st.lists(SPECS, min_size=1, max_size=3))
    def begin(self, documents: list[dict[str, Any]]) -> None:
        for document in documents:
            self.submit(document, [])

    @rule(
        document=SPECS,
        after=st.lists(PICK, max_size=2),
        field=st.sampled_from(DEPENDENCY_FIELDS),
    )
    def submit(self, document: dict[str, Any], after: list[int], field: str = "after") -> None:
        try:
            jobs = {self.some_job(pick) for pick in after}
            spec = job_spec(document | {field: sorted(job for job in jobs if job)})
        except CoreError:
            return
        ended = {job.id: job.phase for job in self.driver.jobs.values() if job.phase in ENDED}
        job = f"j-{len(self.driver.jobs):03}"
        self.attempt(events.Submitted(job, spec, ended=ended))

    @rule(document=SPECS, of=st.none() | st.integers(1, 8), pick=PICK)
    def submit_a_part(self, document: dict[str, Any], of: int | None, pick: int) -> None:
        """Members of a gang that is known, or of a new one."""
        try:
            spec = job_spec(document | {"array": None})
        except CoreError:
            return
        said = {} if of is None else {"min_available": pick % 2}
        part = GangMembers(of, (f"pod-{pick}",), said)
        waiting = [g.job for g in self.driver.cluster.gangs.values() if g.job.members is not None]
        if waiting and pick % 3:
            job = waiting[pick % len(waiting)].id
            self.attempt(events.MembersJoined(job, spec, part))
        else:
            job = f"j-{len(self.driver.jobs):03}"
            self.attempt(events.Submitted(job, spec, members=part))

    @rule(pick=PICK, workers=st.lists(WORKERS, min_size=6, max_size=6), fewer=st.integers(0, 2))
    def place(self, pick: int, workers: list[str], fewer: int) -> None:
        placement = self.placement(pick, workers, fewer)
        if placement is not None:
            self.attempt(events.Placed((placement,)))

    @rule(one=PICK, two=PICK, workers=st.lists(WORKERS, min_size=6, max_size=6))
    def place_group(self, one: int, two: int, workers: list[str]) -> None:
        first, second = self.placement(one, workers, 0), self.placement(two, workers[::-1], 0)
        if first is not None and second is not None and first.job != second.job:
            self.attempt(events.Placed((first, second)))

    def placement(self, pick: int, workers: list[str], fewer: int) -> events.Placement | None:
        waiting = [g for g in self.driver.cluster.gangs.values() if g.unplaced()]
        if not waiting:
            return None
        gang = waiting[pick % len(waiting)]
        indices = [task.index for task in gang.unplaced()]
        chosen = indices[: len(indices) - fewer]
        assignments = tuple(map(Assignment, chosen, workers))
        return events.Placement(gang.job.id, gang.job.version, assignments)

    @rule(pick=PICK)
    def run_a_gang(self, pick: int) -> None:
        """Place a gang where it fits, if it does, and start it."""
        waiting = [g for g in self.driver.cluster.gangs.values() if g.unplaced()]
        if not waiting:
            return
        gang = waiting[pick % len(waiting)]
        names = sorted(name for name, node in self.driver.cluster.nodes.items() if node.is_open)
        self.place(waiting.index(gang), (names * 6)[pick % 3 :][:6], 0)
        if gang.job.id in self.driver.cluster.gangs:
            self.driver.accept(gang.job.id)
            if pick % 3:
                self.driver.start(gang.job.id)

    @rule(pick=PICK)
    def accept_all(self, pick: int) -> None:
        job = self.some_job(pick)
        if job in self.driver.cluster.gangs:
            self.driver.accept(job)

    @rule(pick=PICK)
    def start_all(self, pick: int) -> None:
        job = self.some_job(pick)
        if job in self.driver.cluster.gangs:
            self.driver.start(job)

    @rule(pick=PICK, off_by=OFF_BY, state=LIVELY, report=st.sampled_from(REPORTS))
    def report(self, pick: int, off_by: int, state: State, report: Any) -> None:
        task = self.some_task(pick, state)
        if task is not None:
            self.attempt(report(task.id, task.epoch + off_by))

    @rule(pick=PICK, off_by=OFF_BY, state=LIVELY)
    def prepare(self, pick: int, off_by: int, state: State) -> None:
        task = self.some_task(pick, state)
        if task is not None:
            self.attempt(events.PreparationReported(task.id, task.epoch + off_by, "pulling"))

    @rule(pick=PICK, off_by=OFF_BY)
    def save_and_stop(self, pick: int, off_by: int) -> None:
        task = self.some_task(pick, State.PREEMPTING)
        if task is None:
            return
        if pick % 3:
            self.blobs += 1
            blob = Blob(f"b{self.blobs}", 10)
            self.attempt(events.CheckpointSaved(task.id, task.epoch + off_by, blob))
        if pick % 4 == 0:
            self.attempt(events.ProblemReported(task.id, task.epoch + off_by, "no checkpoint"))
        if pick % 5:
            self.attempt(events.Stopped(task.id, task.epoch))

    @rule(pick=PICK, worker=st.none() | WORKERS, state=LIVELY)
    def claim(self, pick: int, worker: str | None, state: State) -> None:
        task = self.some_task(pick, state)
        if task is not None:
            self.attempt(events.Claimed(task.id, task.worker or worker))

    @rule(
        pick=PICK,
        event=st.sampled_from(
            [
                lambda job: events.CancelRequested(job, by="u"),
                lambda job: events.Evicted(job, by="j-9", why="a test"),
                lambda job: events.Shrunk(job, (0,), by="j-9"),
                lambda job: events.Shrunk(job, (1,), by="j-9"),
                lambda job: events.Shrunk(job, (0, 2), by="j-9"),
                lambda job: events.HoldChanged(job, on_hold=True),
                lambda job: events.HoldChanged(job, on_hold=False),
                lambda job: events.PriorityChanged(job, 5),
                lambda job: events.ElementsCancelled(job, (1, 3)),
                lambda job: events.ElementsRetried(job, (1,)),
            ]
        ),
    )
    def command(self, pick: int, event: Any) -> None:
        job = self.some_job(pick)
        if job is not None:
            self.attempt(event(job))

    @rule(pick=PICK)
    def retry_elements(self, pick: int) -> None:
        """Of an array that has ended, or that has not."""
        arrays = [job for job in self.driver.jobs.values() if job.is_array]
        if arrays:
            row = arrays[pick % len(arrays)]
            blocks = tuple(
                block for key, block in sorted(self.driver.elements.items()) if key[0] == row.id
            )
            stored = None if row.is_live else row
            self.attempt(events.ElementsRetried(row.id, row=stored, blocks=blocks))

    @rule(
        worker=WORKERS,
        protocol=st.sampled_from(Protocol),
        incarnation=st.sampled_from(["1", "2"]),
        gpu=st.sampled_from([0, 1000, 2000]),
        slots=st.none() | st.just(1),
    )
    def register(
        self, worker: str, protocol: Protocol, incarnation: str, gpu: int, slots: int | None
    ) -> None:
        self.attempt(
            events.WorkerRegistered(
                worker,
                incarnation,
                protocol,
                address=worker,
                resources={"gpu": gpu, "cpu": 4000},
                slots=slots if protocol is Protocol.PLAIN else None,
            )
        )

    @rule(worker=WORKERS, forget=st.sets(PICK, max_size=2), stray=st.booleans())
    def inventory(self, worker: str, forget: set[int], stray: bool) -> None:
        node = self.driver.cluster.nodes.get(worker)
        if node is None:
            return
        has = [attempt for n, attempt in enumerate(sorted(node.charges)) if n not in forget]
        if stray:
            has.append(("j-999.0", 1))
        self.attempt(events.Inventoried(worker, node.worker.incarnation, tuple(has)))

    @rule(
        event=st.sampled_from(
            [
                *(kind(worker) for kind in BEFALLS for worker in "abcd"),
                events.QueueSet(Queue("q")),
                events.QueueSet(Queue("q", parent="r")),
                events.QueueSet(Queue("r", parent="q")),
                events.QueueRemoved("q"),
                events.QueueRemoved("default"),
                *(events.CronSet(cron) for cron in CRONS),
                *(events.CronPaused("default/often", paused) for paused in (True, False)),
                events.CronRequested("default/often"),
                events.CronRemoved("default/often"),
            ]
        )
    )
    def befall(self, event: events.Event) -> None:
        self.attempt(event)

    @rule(worker=WORKERS, pick=PICK)
    def gone(self, worker: str, pick: int) -> None:
        node = self.driver.cluster.nodes.get(worker)
        if node is not None and node.charges:
            task, epoch = sorted(node.charges)[pick % len(node.charges)]
            self.attempt(events.Gone(worker, task, epoch))

    @rule(seconds=st.sampled_from([1, 20, 31, 50, 130, 700, 4000]))
    def pass_time(self, seconds: int) -> None:
        self.driver.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    # Asking

    @invariant()
    def the_rows_alone_give_the_same_cluster_back(self) -> None:
        rows = self.driver.rows()
        loaded = Cluster.load(rows, self.driver.now, self.driver.cluster.settings)
        assert durable(loaded) == durable(self.driver.cluster)

    def teardown(self) -> None:
        """On a healthy cluster every job ends: none was forgotten, none is stuck."""
        driver = self.driver
        for cron in list(driver.cluster.crons):
            driver.apply(events.CronRemoved(cron))
        for worker in list(driver.cluster.nodes):
            driver.apply(events.WorkerRemoved(worker))
        for worker in ENOUGH:
            driver.worker(worker, resources={"gpu": 64_000, "cpu": 64_000})
        for job in list(driver.cluster.gangs):
            if driver.phase(job) not in ENDED:
                driver.apply(events.HoldChanged(job, on_hold=False))
            if driver.job(job).awaits_members:
                driver.apply(events.CancelRequested(job))
        for _ in range(2 * len(driver.jobs) + 10):
            driver.advance(601)
            for job in list(driver.cluster.gangs):
                if job in driver.cluster.gangs:  # it may have ended with the job before it
                    self.finish(job)
        left = [gang.job for gang in driver.cluster.gangs.values()]
        assert not left, f"these never end: {left}"

    def finish(self, job: str) -> None:
        """Place what waits if it may be placed, and let every process end well."""
        driver, gang = self.driver, self.driver.gang(job)
        pending = gang.job.pending
        ready = gang.job.stopping is None and gang.job.reservation is None
        ready = ready and (pending is None or not pending.after)
        if ready and gang.may_start_with(gang.unplaced()):
            driver.place(job, *ENOUGH)
        if job in driver.cluster.gangs:
            driver.accept(job)
        while job in driver.cluster.gangs:
            gang = driver.gang(job)
            running = gang.started() or [t for t in gang.tasks if t.state is State.PREEMPTING]
            if not running:
                return
            driver.exit(job, running[0].index)


AnyHistory.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestAnyHistory = AnyHistory.TestCase
