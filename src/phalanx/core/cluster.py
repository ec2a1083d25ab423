"""The state of everything that is not finished, and the only way to change it.

`apply` computes all consequences of an event on copies, and adopts them only if every step was
legal. The same events at the same times always give the same rows.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from phalanx.core import events
from phalanx.core.array import PHASES, UNFINISHED, Array
from phalanx.core.changes import Changes, Timer, merge
from phalanx.core.gang import Gang
from phalanx.core.handlers import (
    alarms,
    arrays,
    checkpoint,
    crons,
    fail,
    gather,
    groups,
    members,
    preempt,
    queues,
    reserve,
    retry,
    start,
    stop,
    submit,
    workers,
)
from phalanx.core.ids import split_element
from phalanx.core.interning import encoded_bytes, shared_rows
from phalanx.core.ledger import Account
from phalanx.core.model import (
    Cron,
    ElementBlock,
    Job,
    Phase,
    Protocol,
    Queue,
    Residue,
    Rows,
    Task,
    Worker,
)
from phalanx.core.node import AttemptKey, Charge, Node, charge_of
from phalanx.core.queues import DEFAULT
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.core.states import PLACED
from phalanx.core.time_units import Micros
from phalanx.core.timers import cron_timers, timers_of

_HANDLERS: dict[type, Callable[[Changes, Any], None]] = {
    events.Submitted: submit.submitted,
    events.MembersJoined: members.members_joined,
    events.CancelRequested: submit.cancel_requested,
    events.ElementsCancelled: arrays.elements_cancelled,
    events.ElementsRetried: retry.elements_retried,
    events.HoldChanged: submit.hold_changed,
    events.PriorityChanged: submit.priority_changed,
    events.BackoffEnded: submit.backoff_ended,
    events.ScheduleTimedOut: submit.schedule_timed_out,
    events.Placed: reserve.placed,
    events.Nominated: preempt.nominated,
    events.NominationEnded: preempt.nomination_ended,
    events.GangGathered: gather.gang_gathered,
    events.GatheringEnded: gather.gathering_ended,
    events.Accepted: reserve.accepted,
    events.InputsUnavailable: fail.inputs_unavailable,
    events.ImagesPinned: reserve.images_pinned,
    events.PreparationReported: reserve.preparation_reported,
    events.ReservationExpired: reserve.reservation_expired,
    events.Claimed: start.claimed,
    events.Started: start.started,
    events.StartTimedOut: start.start_timed_out,
    events.Exited: fail.exited,
    events.Stopped: fail.stopped,
    events.SpawnFailed: fail.spawn_failed,
    events.Vanished: fail.vanished,
    events.LongRunDue: checkpoint.long_run_due,
    events.StallDue: fail.stall_due,
    events.RegroupDue: fail.regroup_due,
    events.ValuesAbnormal: alarms.values_abnormal,
    events.AlarmsDue: fail.alarms_due,
    events.Evicted: stop.evicted,
    events.Shrunk: stop.shrunk,
    events.StopTimedOut: stop.stop_timed_out,
    events.TimeLimitReached: stop.time_limit_reached,
    events.CheckpointSaved: checkpoint.checkpoint_saved,
    events.ProblemReported: checkpoint.problem_reported,
    events.Progressed: checkpoint.progressed,
    events.WorkerRegistered: workers.worker_registered,
    events.Inventoried: workers.inventoried,
    events.WorkerReturned: workers.worker_returned,
    events.PollersCounted: workers.pollers_counted,
    events.WorkerLost: workers.worker_lost,
    events.WorkerRemoved: workers.worker_removed,
    events.CordonChanged: workers.cordon_changed,
    events.DrainRequested: workers.drain_requested,
    events.WorkerLeaving: workers.worker_leaving,
    events.DrainDue: workers.drain_due,
    events.Gone: workers.gone,
    events.QueueSet: queues.queue_set,
    events.QueuesSet: queues.queues_set,
    events.QueueRemoved: queues.queue_removed,
    events.CronSet: crons.cron_set,
    events.CronRemoved: crons.cron_removed,
    events.CronPaused: crons.cron_paused,
    events.CronRequested: crons.cron_requested,
    events.CronDue: crons.cron_due,
    events.CronReplacementDue: crons.cron_replacement_due,
}


class NamespaceLoad(NamedTuple):
    """What a namespace has, as the limits count it."""

    jobs: int = 0  #: unfinished jobs and crons
    tasks: int = 0  #: of the unfinished jobs
    size_bytes: int = 0  #: the specifications of all of them, encoded; 0 if that is not limited


_NO_LOAD = NamespaceLoad()


class Cluster:
    def __init__(self, settings: CoreSettings | None = None) -> None:
        self.settings = settings or CoreSettings()
        self.gangs: dict[str, Gang] = {}
        self.nodes: dict[str, Node] = {}
        #: Host → the workers on it.
        self.hosts: dict[str, set[str]] = {}
        self.queues: dict[str, Queue] = {DEFAULT.name: DEFAULT}
        self.residues: dict[AttemptKey, Residue] = {}
        self.accounts: dict[str, Account] = {}
        self.crons: dict[str, Cron] = {}
        #: The number of the last record.
        self.last_seq = 0
        #: When the rows were loaded. What was only in memory before is not known.
        self.loaded_at: Micros = 0
        #: Unfinished jobs by (namespace, given name).
        self.names: dict[tuple[str, str], str] = {}
        #: job → the pending jobs that run after it.
        self.dependants: dict[str, set[str]] = {}
        #: job → the unfinished jobs that name it in `after`, even if it has finished.
        self.followers: dict[str, set[str]] = {}
        #: namespace/name → the jobs that name it in `group`.
        self.wanted_by: dict[str, set[str]] = {}
        self.loads: dict[str, NamespaceLoad] = {}

    @classmethod
    def load(cls, rows: Rows, now: Micros, settings: CoreSettings | None = None) -> "Cluster":
        """The cluster of these rows. Agents report again what was only in memory."""
        cluster = cls(settings)
        cluster.loaded_at = now
        cluster.last_seq = rows.last_seq
        cluster.queues |= {queue.name: queue for queue in rows.queues}
        cluster.crons = {cron.key: cron for cron in rows.crons}
        for cron in rows.crons:
            cluster._add_load(cron.spec.namespace, cluster.load_of_cron(cron))
        cluster.accounts = {account.queue: account for account in rows.accounts}
        for worker in rows.workers:
            cluster._set_host(worker.id, worker)
        cluster.nodes = {worker.id: Node(worker) for worker in rows.workers}
        by_job: dict[str, list[Task]] = {}
        for task in sorted(rows.tasks, key=lambda task: task.index):
            by_job.setdefault(task.job, []).append(task)
        blocks: dict[str, list[ElementBlock]] = {}
        for block in sorted(rows.elements, key=lambda block: block.number):
            blocks.setdefault(block.array, []).append(block)
        for job in rows.jobs:
            if job.is_array:
                cluster._add(Array(shared_rows(job, [])[0], blocks.get(job.id, [])))
        for job in rows.jobs:
            if not job.is_array:
                cluster._add(Gang(*cluster._shared(job, by_job.get(job.id, []))))
        for residue in rows.residues:
            cluster._add_residue(residue)
        return cluster

    def _shared(self, job: Job, tasks: list[Task]) -> tuple[Job, list[Task]]:
        """Equal rows that share strings with others; an element shares all of its specification."""
        array = self.gangs.get(job.array or "")
        if array is None:
            return shared_rows(job, tasks)
        return shared_rows(job, tasks, array.job.spec)

    def copy(self) -> "Cluster":
        """A copy to try events on. The rows are shared, since they never change."""
        other = Cluster(self.settings)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                value = {k: set(v) if isinstance(v, set) else v for k, v in value.items()}  # noqa: PLW2901
            setattr(other, name, value)
        return other

    def apply(self, event: events.Event, now: Micros) -> Changes:
        """Apply an event, and return the changes that follow from it.

        Raises a CoreError and changes nothing if the event is refused.
        """
        changes = self.preview(event, now)
        self._take_over(changes)
        return changes

    def preview(self, event: events.Event, now: Micros) -> Changes:
        """What `apply` would change. Raises a CoreError if the event would be refused."""
        changes = Changes(self, now)
        _HANDLERS[type(event)](changes, event)
        if changes.gangs:
            _conclude(changes)
        return changes

    def load_of(self, namespace: str) -> NamespaceLoad:
        return self.loads.get(namespace, _NO_LOAD)

    def load_of_job(self, gang: Gang) -> NamespaceLoad:
        """What a job counts. The elements of an array are counted with the array until they end."""
        job = gang.job
        if job.array is not None:
            return _NO_LOAD
        jobs, tasks = 1, gang.size
        if isinstance(gang, Array):
            jobs, tasks = gang.unfinished, gang.unfinished * job.spec.size
        return NamespaceLoad(jobs, tasks, self._bytes_of(job.spec))

    def load_of_cron(self, cron: Cron | None) -> NamespaceLoad:
        return _NO_LOAD if cron is None else NamespaceLoad(1, 0, self._bytes_of(cron.spec))

    def _bytes_of(self, spec: JobSpec) -> int:
        return 0 if self.settings.namespace_bytes is None else encoded_bytes(spec)

    def has_job(self, job: str) -> bool:
        """Whether a job is unfinished, or an element of an unfinished array."""
        return job in self.gangs or self._element(job) is not None

    def verdict_of(self, job: str) -> Phase | None:
        """How a job that `has_job` knows has ended; None if it has not."""
        gang = self.gangs.get(job)
        if gang is not None:
            return gang.job.verdict
        element = self._element(job)
        state = None if element is None else element[0].state(element[1])
        return None if state is None or state in UNFINISHED else PHASES[state]

    def _element(self, job: str) -> tuple[Array, int] | None:
        """The array and the position of an element that need not be a job of its own."""
        parts = split_element(job)
        array = None if parts is None else self.gangs.get(parts[0])
        if parts is None or not isinstance(array, Array) or not parts[1].isdecimal():
            return None
        position = array.position(int(parts[1]))
        return None if position is None else (array, position)

    def _add_loads(self, changes: Changes) -> None:
        """Count new jobs, members, elements and crons, before they are taken over."""
        if not (changes.added or changes.respecified or changes.elements or changes.crons):
            return
        for name in (*changes.added, *changes.respecified):
            gang = changes.gangs[name]
            self._change_load(gang, self.gangs.get(name))
        for name in dict.fromkeys(array for array, _ in changes.elements):
            array, before = changes.gangs[name], self.gangs.get(name)
            if isinstance(array, Array) and isinstance(before, Array):
                ended, spec = before.unfinished - array.unfinished, array.job.spec
                if ended:
                    self._subtract_load(spec.namespace, NamespaceLoad(ended, ended * spec.size))
        for key, cron in changes.crons.items():
            old = self.crons.get(key)
            if old is None or cron is None or old.spec is not cron.spec:
                namespace = key.partition("/")[0]
                self._add_load(namespace, self.load_of_cron(cron))
                self._subtract_load(namespace, self.load_of_cron(old))

    def _change_load(self, gang: Gang, before: Gang | None) -> None:
        self._add_load(gang.job.spec.namespace, self.load_of_job(gang))
        if before is not None:
            self._subtract_load(gang.job.spec.namespace, self.load_of_job(before))

    def _add_load(self, namespace: str, more: NamespaceLoad) -> None:
        jobs, tasks, size_bytes = self.load_of(namespace)
        load = NamespaceLoad(jobs + more.jobs, tasks + more.tasks, size_bytes + more.size_bytes)
        if load != _NO_LOAD:
            self.loads[namespace] = load

    def _subtract_load(self, namespace: str, less: NamespaceLoad) -> None:
        jobs, tasks, size_bytes = self.load_of(namespace)
        load = NamespaceLoad(jobs - less.jobs, tasks - less.tasks, size_bytes - less.size_bytes)
        if load != _NO_LOAD:
            self.loads[namespace] = load
        else:
            self.loads.pop(namespace, None)

    def task(self, task: str) -> Task:
        """A task of an unfinished job. Raises Unknown."""
        return Changes(self, 0).task(task)[1]

    def timers(self) -> Iterator[Timer]:
        """All timers that follow from the rows, for a leader that has just loaded them."""
        for gang in self.gangs.values():
            yield from timers_of(gang, self.settings, self.loaded_at)
        for node in self.nodes.values():
            if node.worker.drain_at is not None:
                at = node.worker.drain_at
                yield Timer(at, events.DrainDue(node.worker.id, at))
        for cron in self.crons.values():
            yield from cron_timers(cron)

    def _set_host(self, worker: str, row: Worker | None) -> None:
        """Keep the index of hosts up to date; None: the worker is removed."""
        before = self.nodes.get(worker)
        if before is not None:
            host = before.worker.host
            self.hosts[host].discard(worker)
            if not self.hosts[host]:
                del self.hosts[host]
        if row is not None:
            self.hosts.setdefault(row.host, set()).add(worker)

    def _take_over(self, changes: Changes) -> None:
        self.last_seq = changes.seq
        self._add_loads(changes)
        if changes.nodes or changes.workers:
            self._take_over_nodes(changes)
        if changes.queues:
            merge(self.queues, changes.queues)
        if changes.residues:
            merge(self.residues, changes.residues)
        if changes.accounts:
            self.accounts.update(changes.accounts)
        if changes.crons:
            merge(self.crons, changes.crons)
        if changes.gangs:
            self._take_over_gangs(changes)

    def _take_over_nodes(self, changes: Changes) -> None:
        for worker, row in changes.workers.items():
            self._set_host(worker, row)
        self.nodes.update(changes.nodes)
        for worker, row in changes.workers.items():
            if row is None:
                del self.nodes[worker]

    def _take_over_gangs(self, changes: Changes) -> None:
        for names in (changes.added, changes.respecified):
            for name in names:
                self._index(changes.gangs[name].job)
        self.gangs.update(changes.gangs)
        for name, _ in changes.verdicts:
            self.dependants.pop(name, None)
        for job in changes.jobs.values():
            if job.end is not None and job.end.finished_at is not None:
                self._forget(job)

    def _add(self, gang: Gang) -> None:
        """Add a job from the store, and charge the workers of its tasks."""
        job = gang.job
        self.gangs[job.id] = gang
        self._index(job)
        self._add_load(job.spec.namespace, self.load_of_job(gang))
        for task in gang.tasks:
            node = self.nodes.get(task.worker) if task.worker is not None else None
            if node is not None and task.state in PLACED:
                node.charge((task.id, task.epoch), charge_of(task, gang.role(task.index)))
        gathered = None if job.pending is None else job.pending.gathered
        for assignment in () if gathered is None else gathered.places:
            if gathered is not None and assignment.worker in self.nodes:
                node = self.nodes[assignment.worker]
                gather.charge_gathered(node, gang, assignment, gathered.since)
        gang.missing = sum(
            self.nodes[task.worker].worker.protocol is Protocol.SYNC
            for task in gang.unreleased()
            if task.worker is not None
        )

    def _add_residue(self, residue: Residue) -> None:
        attempt = (residue.task, residue.epoch)
        self.residues[attempt] = residue
        node = self.nodes[residue.worker]
        node.charge(
            attempt, Charge(residue.placed_at, residue.resources, residue.devices, residue.ports)
        )
        node.residues.add(attempt)

    def _index(self, job: Job) -> None:
        if job.array is not None:
            return  # its array has the name and the dependencies
        if job.spec.name is not None:
            self.names[job.spec.namespace, job.spec.name] = job.id
        for dependency in () if job.pending is None else job.pending.after:
            self.dependants.setdefault(dependency, set()).add(job.id)
        for dependency in job.spec.dependencies:
            self.followers.setdefault(dependency, set()).add(job.id)
        for name in job.spec.group:
            self.wanted_by.setdefault(name, set()).add(job.id)

    def _forget(self, job: Job) -> None:
        """Remove a finished job from memory. Its residues stay on their workers."""
        self._subtract_load(job.spec.namespace, self.load_of_job(self.gangs.pop(job.id)))
        if job.array is not None:
            return
        if job.spec.name is not None:
            del self.names[job.spec.namespace, job.spec.name]
        for dependency in job.spec.dependencies:
            if dependency in self.dependants:
                self.dependants[dependency].discard(job.id)
            followers = self.followers[dependency]
            followers.discard(job.id)
            if not followers:
                del self.followers[dependency]
        for name in job.spec.group:
            self.wanted_by[name].discard(job.id)
            if not self.wanted_by[name]:
                del self.wanted_by[name]


def _conclude(changes: Changes) -> None:
    """Update what depends on the changed jobs: dependants, groups, phases, arrays, crons."""
    told = 0
    while True:
        while told < len(changes.verdicts):  # grows while dependants end
            job, phase = changes.verdicts[told]
            for dependant in sorted(changes.base.dependants.get(job, ())):
                submit.dependency_ended(changes, changes.gang(dependant), job, phase)
            if job in changes.gangs:
                groups.member_ended(changes, changes.gangs[job])
            told += 1
        _settle_phases(changes)
        if told == len(changes.verdicts):
            break
    for row in [row for row in changes.jobs.values() if row.cron is not None]:
        if row.finished_at is not None:
            crons.run_ended(changes, row)


def _settle_phases(changes: Changes) -> None:
    """Set the phase of every changed job, finish those that are over, then settle the arrays."""
    elements = []
    has_arrays = False
    for gang in changes.gangs.values():
        if isinstance(gang, Array):
            has_arrays = True
            continue
        phase, end = gang.phase(), gang.job.end
        if end is not None and end.finished_at is None and gang.is_over:
            changes.set_job(gang, phase=phase, end=replace(end, finished_at=changes.now))
        elif phase is not gang.job.phase:
            changes.set_job(gang, phase=phase)
        elif gang.job.end is not None:
            continue
        if gang.job.array is not None:
            elements.append(gang)
    if not has_arrays and not elements:
        return
    for gang in elements:
        arrays.note_element(changes, gang)
    for gang in [each for each in changes.gangs.values() if isinstance(each, Array)]:
        if gang.job.end is None:
            arrays.settle_array(changes, gang)
