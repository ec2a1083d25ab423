"""The state of everything that is not finished, and the only way to change it.

`apply` computes all consequences of an event on copies, and adopts them only if every step was
legal. The same events at the same times always give the same rows.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from phalanx.core import events
from phalanx.core.changes import Changes, Timer, merge
from phalanx.core.gang import Gang
from phalanx.core.handlers import (
    alarms,
    checkpoint,
    crons,
    fail,
    gather,
    groups,
    members,
    preempt,
    queues,
    reserve,
    start,
    stop,
    submit,
    workers,
)
from phalanx.core.interning import encoded_bytes, shared_rows
from phalanx.core.ledger import Account
from phalanx.core.model import Cron, Job, Phase, Protocol, Queue, Residue, Rows, Task, Worker
from phalanx.core.node import AttemptKey, Charge, Node, charge_of
from phalanx.core.queues import DEFAULT
from phalanx.core.settings import CoreSettings
from phalanx.core.states import PLACED
from phalanx.core.time_units import Micros
from phalanx.core.timers import cron_timers, timers_of

_HANDLERS: dict[type, Callable[[Changes, Any], None]] = {
    events.Submitted: submit.submitted,
    events.MembersJoined: members.members_joined,
    events.CancelRequested: submit.cancel_requested,
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
    size_bytes: int = 0  #: the specifications of all of them, encoded


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
            cluster._add_load(cron.spec.namespace, 1, 0, encoded_bytes(cron.spec))
        cluster.accounts = {account.queue: account for account in rows.accounts}
        for worker in rows.workers:
            cluster._set_host(worker.id, worker)
        cluster.nodes = {worker.id: Node(worker) for worker in rows.workers}
        by_job: dict[str, list[Task]] = {}
        for task in sorted(rows.tasks, key=lambda task: task.index):
            by_job.setdefault(task.job, []).append(task)
        for job in rows.jobs:
            cluster._add(Gang(*shared_rows(job, by_job.get(job.id, []))))
        for residue in rows.residues:
            cluster._add_residue(residue)
        return cluster

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
        _conclude(changes)
        return changes

    def load_of(self, namespace: str) -> NamespaceLoad:
        return self.loads.get(namespace, NamespaceLoad())

    def _add_loads(self, changes: Changes) -> None:
        """Count new jobs, members and crons, before they are taken over."""
        for name in (*changes.added, *changes.joined):
            gang, before = changes.gangs[name], self.gangs.get(name)
            size = encoded_bytes(gang.job.spec)
            if before is None:
                self._add_load(gang.job.spec.namespace, 1, gang.size, size)
            else:
                size -= encoded_bytes(before.job.spec)
                self._add_load(gang.job.spec.namespace, 0, gang.size - before.size, size)
        for key, cron in changes.crons.items():
            old = self.crons.get(key)
            if old is None or cron is None or old.spec is not cron.spec:
                self._replace_cron_load(key.partition("/")[0], old, cron)

    def _replace_cron_load(self, namespace: str, old: Cron | None, new: Cron | None) -> None:
        sizes = [0 if cron is None else encoded_bytes(cron.spec) for cron in (old, new)]
        self._add_load(namespace, (new is not None) - (old is not None), 0, sizes[1] - sizes[0])

    def _add_load(self, namespace: str, jobs: int, tasks: int, size_bytes: int) -> None:
        before = self.load_of(namespace)
        after = NamespaceLoad(
            before.jobs + jobs, before.tasks + tasks, before.size_bytes + size_bytes
        )
        if any(after):
            self.loads[namespace] = after
        else:
            del self.loads[namespace]

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
        for name in (*changes.added, *changes.joined):
            self._index(changes.gangs[name].job)
        self.gangs.update(changes.gangs)
        for worker, row in changes.workers.items():
            self._set_host(worker, row)
        if changes.nodes:
            self.nodes.update(changes.nodes)
        for worker, row in changes.workers.items():
            if row is None:
                del self.nodes[worker]
        if changes.queues:
            merge(self.queues, changes.queues)
        if changes.residues:
            merge(self.residues, changes.residues)
        self.accounts.update(changes.accounts)
        if changes.crons:
            merge(self.crons, changes.crons)
        for name in changes.verdicts:
            self.dependants.pop(name, None)
        for job in changes.jobs.values():
            if job.end is not None and job.end.finished_at is not None:
                self._forget(job)

    def _add(self, gang: Gang) -> None:
        """Add a job from the store, and charge the workers of its tasks."""
        job = gang.job
        self.gangs[job.id] = gang
        self._index(job)
        self._add_load(job.spec.namespace, 1, gang.size, encoded_bytes(job.spec))
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
        size = self.gangs.pop(job.id).size
        self._add_load(job.spec.namespace, -1, -size, -encoded_bytes(job.spec))
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
    """Update what depends on the changed jobs: dependants, groups, phases, finished jobs, crons."""
    for job in changes.verdicts:  # grows while dependants end
        gang = changes.gangs[job]
        for dependant in sorted(changes.base.dependants.get(job, ())):
            submit.dependency_ended(
                changes, changes.gang(dependant), job, gang.job.verdict or Phase.FAILED
            )
        groups.member_ended(changes, gang)
    runs: list[Job] = []
    for gang in changes.gangs.values():
        phase, end = gang.phase(), gang.job.end
        if end is not None and end.finished_at is None and gang.is_over:
            changes.set_job(gang, phase=phase, end=replace(end, finished_at=changes.now))
            if gang.job.cron is not None:
                runs.append(gang.job)
        elif phase is not gang.job.phase:
            changes.set_job(gang, phase=phase)
    for run in runs:
        crons.run_ended(changes, run)
