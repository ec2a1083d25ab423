"""The rules that hold for every cluster after every event, and the check of all of them.

Between two events one more rule holds, which the tests check: what has ended as a job never
changes. A done task of an unfinished job can be requeued, with its whole gang.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from phalanx.core.array import LIVE, Array, tally_of
from phalanx.core.cluster import Cluster, NamespaceLoad
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Assignment, Cron, Phase, Task
from phalanx.core.node import DEVICE, GPU, Node
from phalanx.core.spec.job import Match, Restart
from phalanx.core.states import PLACED, State


class Invariant(StrEnum):
    """The rules by name. Tests refer to the names."""

    # Jobs
    FINISHED_JOBS_LEAVE_MEMORY = "finished-jobs-leave-memory"
    PHASE_MATCHES_TASKS = "phase-matches-tasks"
    STAGES_MATCH_TASKS = "stages-match-tasks"
    COUNTS_MATCH_TASKS = "counts-match-tasks"
    FAILURES_WITHIN_RETRIES = "failures-within-retries"
    VERDICT_STOPS_THE_GANG = "verdict-stops-the-gang"
    STOPPING_HAS_A_TASK_TO_STOP = "stopping-has-a-task-to-stop"
    STOPPING_REACHES_EVERY_TASK = "stopping-reaches-every-task"
    PREEMPTED_ONLY_WHILE_STOPPING = "preempted-only-while-stopping"
    CAPACITY_KEPT_ONLY_WHILE_PENDING = "capacity-kept-only-while-pending"
    MINIMUM_IS_KEPT = "minimum-is-kept"
    NO_FAILED_TASK_IN_A_RUNNING_GANG = "no-failed-task-in-a-running-gang"
    GANG_RESTARTS_WITH_ITS_DONE_TASKS = "gang-restarts-with-its-done-tasks"
    DEPENDENCIES_ARE_UNFINISHED = "dependencies-are-unfinished"
    # Arrays
    ELEMENTS_MATCH_JOBS = "elements-match-jobs"
    WINDOW_IS_FULL = "window-is-full"
    PARALLEL_IS_KEPT = "parallel-is-kept"
    # Tasks
    NO_PROCESS_BEFORE_RELEASE = "no-process-before-release"
    EPOCH_IS_NOT_AHEAD_OF_THE_JOB = "epoch-is-not-ahead-of-the-job"
    PENDING_TASK_HAS_NO_PLACE = "pending-task-has-no-place"
    GANG_MEMBERS_ARE_BLOCKED = "gang-members-are-blocked"
    NO_START_BEFORE_ALL_MEMBERS = "no-start-before-all-members"
    STOP_HAS_A_TIME = "stop-has-a-time"
    SAVED_ONLY_WHILE_STOPPING = "saved-only-while-stopping"
    # Reservations
    ONE_OPEN_RESERVATION = "one-open-reservation"
    RELEASED_AS_A_WHOLE = "released-as-a-whole"
    # Workers
    PLACES_ARE_CHARGED = "places-are-charged"
    NO_PLACE_ON_A_LOST_WORKER = "no-place-on-a-lost-worker"
    CHARGES_HAVE_AN_OWNER = "charges-have-an-owner"
    USAGE_MATCHES_CHARGES = "usage-matches-charges"
    DEVICES_ARE_NOT_SHARED = "devices-are-not-shared"
    PORTS_ARE_NOT_SHARED = "ports-are-not-shared"
    NO_OVERCOMMITMENT = "no-overcommitment"
    # Crons and indexes
    PAUSED_CRON_IS_NOT_DUE = "paused-cron-is-not-due"
    CRON_RUNS_ARE_KNOWN = "cron-runs-are-known"
    CRON_RUNS_ONCE_PER_TIME = "cron-runs-once-per-time"
    INDEXES_MATCH_ROWS = "indexes-match-rows"


class Violation(NamedTuple):
    invariant: str
    detail: str  #: which job, task or worker, and its state

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail}"


class InvariantViolated(AssertionError):  # noqa: N818
    """Rules that do not hold, each with where it does not."""

    def __init__(self, *violations: Violation) -> None:
        self.violations = violations
        super().__init__("bug: " + "; ".join(map(str, violations)))


def check(cluster: Cluster) -> None:
    """Raise InvariantViolated with every violation."""
    found = list(violations(cluster))
    if found:
        raise InvariantViolated(*found)


def violations(cluster: Cluster) -> Iterator[Violation]:
    for gang in cluster.gangs.values():
        if isinstance(gang, Array):
            yield from _array(cluster, gang)
            continue
        yield from _gang(gang)
        yield from _charges_of(cluster, gang)
    for node in cluster.nodes.values():
        yield from _node(cluster, node)
    for cron in cluster.crons.values():
        yield from _cron(cluster, cron)
    yield from _indexes(cluster)


def _cron(cluster: Cluster, cron: Cron) -> Iterator[Violation]:
    if cron.paused and cron.next_at is not None:
        yield Violation(
            Invariant.PAUSED_CRON_IS_NOT_DUE, f"cron {cron.key} is due at {cron.next_at}"
        )
    for run in cron.unfinished:
        if run.job not in cluster.gangs:
            yield Violation(
                Invariant.CRON_RUNS_ARE_KNOWN, f"cron {cron.key} has {run.job} as an unfinished run"
            )
    if len({run.at for run in cron.runs}) != len(cron.runs):
        yield Violation(Invariant.CRON_RUNS_ONCE_PER_TIME, f"cron {cron.key} has runs {cron.runs}")


def _gang(gang: Gang) -> Iterator[Violation]:
    job = gang.job
    if not job.is_live:
        yield Violation(Invariant.FINISHED_JOBS_LEAVE_MEMORY, f"job {job.id}")
    if job.phase is not gang.phase():
        yield Violation(
            Invariant.PHASE_MATCHES_TASKS,
            f"job {job.id} has phase {job.phase}, its tasks {gang.phase()}",
        )
    for state in State:
        if gang.count(state) != sum(task.state is state for task in gang.tasks):
            yield Violation(Invariant.COUNTS_MATCH_TASKS, f"{state} tasks of job {job.id}")
    if job.failures > job.spec.max_retries:
        yield Violation(
            Invariant.FAILURES_WITHIN_RETRIES,
            f"job {job.id} has {job.failures} of {job.spec.max_retries}",
        )
    if job.end is not None and job.stopping is None:
        yield Violation(
            Invariant.VERDICT_STOPS_THE_GANG, f"job {job.id} is {job.verdict} and not finished"
        )
    if job.stopping is not None and gang.is_idle:
        yield Violation(Invariant.STOPPING_HAS_A_TASK_TO_STOP, f"job {job.id}")
    if job.stopping is not None and gang.started():
        yield Violation(Invariant.STOPPING_REACHES_EVERY_TASK, gang.started()[0].story)
    if job.stopping is None and gang.count(State.PREEMPTED):
        yield Violation(Invariant.PREEMPTED_ONLY_WHILE_STOPPING, f"job {job.id}")
    for task in gang.tasks:
        yield from _task(gang, task)
    yield from _stages(gang)
    yield from _start_set(gang)
    yield from _done_tasks(gang)
    yield from _minimum(gang)


def _array(cluster: Cluster, array: Array) -> Iterator[Violation]:
    """Every element is counted once: as a job of its own, or as a state of its array."""
    job, spec = array.job, array.job.spec.array
    if not job.is_live or array.is_over:
        yield Violation(Invariant.FINISHED_JOBS_LEAVE_MEMORY, f"array {job.id}")
    if job.phase is not array.phase():
        yield Violation(
            Invariant.PHASE_MATCHES_TASKS,
            f"array {job.id} has phase {job.phase}, its elements {array.phase()}",
        )
    known = {state: count for state, count in array.tally.items() if count}
    if (
        job.counts != array.element_counts
        or known != tally_of(array.blocks)
        or sum(known.values()) != job.spec.elements
    ):
        yield Violation(Invariant.COUNTS_MATCH_TASKS, f"array {job.id} counts {known}")
    live = array.positions(LIVE.values())
    states = {array.element(position): array.state(position) for position in live}
    jobs = {
        name: _element_state(gang)
        for name, gang in cluster.gangs.items()
        if gang.job.array == job.id
    }
    if states != jobs:
        yield Violation(Invariant.ELEMENTS_MATCH_JOBS, f"array {job.id}: {states} and {jobs}")
    if array.free_slots:
        yield Violation(Invariant.WINDOW_IS_FULL, f"array {job.id} has {array.tally}")
    if spec is not None and spec.parallel is not None and len(jobs) > spec.parallel:
        yield Violation(Invariant.PARALLEL_IS_KEPT, f"array {job.id} has {len(jobs)} elements")


def _element_state(gang: Gang) -> str:
    return LIVE[Phase.STOPPING if gang.job.end is not None else gang.phase()]


def _stages(gang: Gang) -> Iterator[Violation]:
    """A job has the row of a stage exactly while it is in that stage."""
    job, pending = gang.job, gang.job.pending
    wrong = []
    if pending is not None and job.is_ending:
        wrong.append("pending and ending")
    if pending is None and not job.is_ending and not job.satisfied:
        wrong.append("not pending, though it has never started")
    if (job.reservation is not None) != bool(gang.unreleased()):
        wrong.append("a reservation without a start set, or the reverse")
    if job.attempt is None and (gang.started() or gang.count(State.PREEMPTING)):
        wrong.append("tasks without an attempt")
    for detail in wrong:
        yield Violation(Invariant.STAGES_MATCH_TASKS, f"job {job.id}: {detail}")
    keeps = pending is not None and (pending.gathered or pending.nomination)
    if keeps and job.reservation is not None:
        yield Violation(Invariant.CAPACITY_KEPT_ONLY_WHILE_PENDING, f"job {job.id} is {job.phase}")


def _task(gang: Gang, task: Task) -> Iterator[Violation]:
    if task.state in (State.RUNNING, State.PREEMPTING) and not task.released:
        yield Violation(Invariant.NO_PROCESS_BEFORE_RELEASE, task.story)
    if task.epoch > gang.job.epoch:
        yield Violation(Invariant.EPOCH_IS_NOT_AHEAD_OF_THE_JOB, task.story)
    if task.state in (State.BLOCKED, State.PENDING) and (task.place is not None):
        yield Violation(Invariant.PENDING_TASK_HAS_NO_PLACE, task.story)
    if task.state is State.PENDING and gang.size > 1:
        yield Violation(Invariant.GANG_MEMBERS_ARE_BLOCKED, task.story)
    if gang.job.awaits_members and (task.state is not State.BLOCKED or task.epoch):
        yield Violation(Invariant.NO_START_BEFORE_ALL_MEMBERS, task.story)
    if task.state is State.PREEMPTING and (task.place is None or task.place.stopping_at is None):
        yield Violation(Invariant.STOP_HAS_A_TIME, task.story)
    if task.saved is not None and task.state not in (State.PREEMPTING, State.PREEMPTED):
        yield Violation(Invariant.SAVED_ONLY_WHILE_STOPPING, task.story)


def _start_set(gang: Gang) -> Iterator[Violation]:
    """A reservation is released as a whole, and a job has at most one open."""
    unreleased = gang.unreleased()
    if any(task.epoch != gang.job.epoch for task in unreleased):
        yield Violation(Invariant.ONE_OPEN_RESERVATION, f"job {gang.job.id}")
    if unreleased and any(
        task.epoch == gang.job.epoch and task.released for task in gang.tasks if task.worker
    ):
        yield Violation(Invariant.RELEASED_AS_A_WHOLE, f"job {gang.job.id}")


def _done_tasks(gang: Gang) -> Iterator[Violation]:
    """Before its job ends, a done task runs again only with its whole gang."""
    job = gang.job
    if job.pending is not None and not gang.places_tasks_alone and gang.count(State.DONE):
        yield Violation(Invariant.GANG_RESTARTS_WITH_ITS_DONE_TASKS, f"job {job.id}")


def _minimum(gang: Gang) -> Iterator[Violation]:
    job, spec = gang.job, gang.job.spec
    if job.stopping is not None or spec.restart is Restart.TASK:
        return
    if spec.match is Match.ONCE_SATISFIED and job.satisfied:
        return
    if gang.is_short:
        yield Violation(Invariant.MINIMUM_IS_KEPT, f"job {job.id}")
    if gang.count(State.FAILED):
        yield Violation(Invariant.NO_FAILED_TASK_IN_A_RUNNING_GANG, f"job {job.id}")


def _charges_of(cluster: Cluster, gang: Gang) -> Iterator[Violation]:
    for task in gang.tasks:
        if task.state not in PLACED or task.worker is None:
            continue
        node = cluster.nodes.get(task.worker)
        if node is None or (task.id, task.epoch) not in node.charges:
            yield Violation(Invariant.PLACES_ARE_CHARGED, task.story)
        elif node.worker.lost_at is not None:
            yield Violation(Invariant.NO_PLACE_ON_A_LOST_WORKER, task.story)
    for assignment in _gathered(gang):
        node = cluster.nodes.get(assignment.worker)
        if node is None or gang.tasks[assignment.task].id not in node.gathered:
            yield Violation(
                Invariant.PLACES_ARE_CHARGED, f"job {gang.job.id} gathered {assignment}"
            )


def _node(cluster: Cluster, node: Node) -> Iterator[Violation]:
    name = node.worker.id
    used: dict[str, int] = {}
    taken: dict[int, int] = {}
    for charge in (*node.charges.values(), *node.gathered.values()):
        for resource, amount in charge.resources.items():
            used[resource] = used.get(resource, 0) + amount
        for device in charge.devices:
            share = min(charge.resources[GPU], DEVICE)
            taken[device] = taken.get(device, 0) + share
    for task in node.gathered:
        if not _is_gathered(cluster, node, task):
            yield Violation(
                Invariant.CHARGES_HAVE_AN_OWNER, f"worker {name} for the gathered place of {task}"
            )
    for attempt in node.charges:
        if not _is_known(cluster, node, attempt):
            yield Violation(Invariant.CHARGES_HAVE_AN_OWNER, f"worker {name} for {attempt}")
    if {resource: n for resource, n in node.used.items() if n} != used:
        yield Violation(Invariant.USAGE_MATCHES_CHARGES, f"worker {name}")
    for device, amount in taken.items():
        if amount > DEVICE:
            yield Violation(Invariant.DEVICES_ARE_NOT_SHARED, f"device {device} of worker {name}")
    ports = [port for charge in node.charges.values() for port in charge.ports]
    if len(ports) != len(set(ports)):
        yield Violation(Invariant.PORTS_ARE_NOT_SHARED, f"worker {name} has {ports}")
    yield from _over_commitment(node, used)


def _over_commitment(node: Node, used: dict[str, int]) -> Iterator[Violation]:
    """A machine that came back smaller may be overcommitted, but only by older charges."""
    worker = node.worker
    new = [charge for charge in node.charges.values() if charge.at > worker.registered_at]
    for resource, amount in used.items():
        if amount > worker.resources.get(resource, 0) and any(resource in c.resources for c in new):
            yield Violation(Invariant.NO_OVERCOMMITMENT, f"{resource} of worker {worker.id}")
    if worker.slots is not None and node.occupants > worker.slots and new:
        yield Violation(Invariant.NO_OVERCOMMITMENT, f"slots of worker {worker.id}")


def _is_known(cluster: Cluster, node: Node, attempt: tuple[str, int]) -> bool:
    if attempt in cluster.residues:
        return cluster.residues[attempt].worker == node.worker.id
    job, index = split_task(attempt[0])
    gang = cluster.gangs.get(job)
    if gang is None:
        return False
    task = gang.tasks[index]
    return task.epoch == attempt[1] and task.worker == node.worker.id and task.state in PLACED


def _gathered(gang: Gang) -> tuple[Assignment, ...]:
    pending = gang.job.pending
    return () if pending is None or pending.gathered is None else pending.gathered.places


def _is_gathered(cluster: Cluster, node: Node, task: str) -> bool:
    job, index = split_task(task)
    gang = cluster.gangs.get(job)
    return gang is not None and Assignment(index, node.worker.id) in _gathered(gang)


def _indexes(cluster: Cluster) -> Iterator[Violation]:
    specs = {job: gang.job.spec for job, gang in cluster.gangs.items()}
    named = {
        (spec.namespace, spec.name): job
        for job, spec in specs.items()
        if spec.name and cluster.gangs[job].job.array is None
    }
    if named != cluster.names:
        yield Violation(Invariant.INDEXES_MATCH_ROWS, "names")
    loads: dict[str, NamespaceLoad] = {}
    for spec, more in (
        *((gang.job.spec, cluster.load_of_job(gang)) for gang in cluster.gangs.values()),
        *((cron.spec, cluster.load_of_cron(cron)) for cron in cluster.crons.values()),
    ):
        before = loads.get(spec.namespace, NamespaceLoad())
        loads[spec.namespace] = NamespaceLoad(*map(sum, zip(before, more, strict=True)))
    if loads != cluster.loads:
        yield Violation(Invariant.INDEXES_MATCH_ROWS, "loads")
    for job, gang in cluster.gangs.items():
        for dependency in () if gang.job.pending is None else gang.job.pending.after:
            if not cluster.has_job(dependency) or cluster.verdict_of(dependency) is not None:
                yield Violation(
                    Invariant.DEPENDENCIES_ARE_UNFINISHED, f"job {job} runs after {dependency}"
                )
            elif job not in cluster.dependants.get(dependency, ()):
                yield Violation(
                    Invariant.INDEXES_MATCH_ROWS, f"dependants of {dependency} lack {job}"
                )
    for attempt, residue in cluster.residues.items():
        node = cluster.nodes.get(residue.worker)
        if node is None or attempt not in node.charges:
            yield Violation(
                Invariant.PLACES_ARE_CHARGED, f"residue of {attempt} on {residue.worker}"
            )
    for worker, node in cluster.nodes.items():
        if node.residues != node.charges.keys() & cluster.residues.keys():
            yield Violation(Invariant.INDEXES_MATCH_ROWS, f"residues of worker {worker}")
