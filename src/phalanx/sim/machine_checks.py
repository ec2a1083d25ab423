"""Checks of the simulated workers and the database, independent of what the servers believe."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from phalanx.core.causes import TaskEnding
from phalanx.core.ids import split_task
from phalanx.core.model import ElementBlock, Job, Task
from phalanx.core.records import ElementsRetryRequested, TaskFailed
from phalanx.sim.invariants import SimulationInvariant, violated
from phalanx.sim.machine import SimulatedMachine
from phalanx.store import rows
from phalanx.store.memory import MemoryDatabase

WHOLE_DEVICE = 1000


@lru_cache(maxsize=10_000)
def _read_task(document: str) -> Task:
    """The task of a row. Most rows are the same as at the last check."""
    return rows.task_from(document)


class MachineChecks:
    def __init__(self, database: MemoryDatabase, machines: Sequence[SimulatedMachine]) -> None:
        self._database = database
        self._machines = {machine.name: machine for machine in machines}
        self._last_seq = 0
        #: The last commit and the number of starts when the starts were checked.
        self._checked: tuple[str | None, int] = (None, 0)
        #: The number of failed tasks, by job.
        self._failures: Counter[str] = Counter()

    def job(self, job: str) -> Job | None:
        """The job as it is in the database, if it is there."""
        row = self._database.jobs.get(job)
        return None if row is None else rows.job_from(row.doc)

    def elements(self, array: str) -> tuple[ElementBlock, ...]:
        """The states of the elements of an array, as they are in the database."""
        blocks = sorted(self._database.others[rows.ELEMENTS.name].items())
        return tuple(rows.elements_from(doc) for key, doc in blocks if key[0] == array)

    def live_elements(self, array: str) -> list[str]:
        """The elements of an array that are unfinished jobs in the database."""
        return [
            row.id
            for row in self._database.jobs.values()
            if row.array == array and row.finished_at is None
        ]

    def _task(self, task: str) -> Task:
        job, index = split_task(task)
        return _read_task(self._database.tasks[job][index])

    def check(self, acknowledged: Iterable[str], refused: Iterable[str]) -> None:
        """Raise InvariantViolated on the first violation."""
        for job in acknowledged:
            if job not in self._database.jobs:
                raise violated(SimulationInvariant.ACKNOWLEDGED_JOBS_ARE_STORED, f"job {job}")
        for job in refused:
            if job in self._database.jobs:
                raise violated(SimulationInvariant.REFUSED_JOBS_ARE_NOT_STORED, f"job {job}")
        self._check_starts()
        self._check_devices()
        self._check_records()

    def _check_starts(self) -> None:
        started = [attempt for machine in self._machines.values() for attempt in machine.started]
        state = (next(reversed(self._database.batches), None), len(started))
        if state == self._checked:
            return
        if len(started) != len(set(started)):
            twice = sorted({attempt for attempt in started if started.count(attempt) > 1})
            raise violated(SimulationInvariant.ATTEMPTS_RUN_ONCE, f"{twice}")
        gangs: dict[tuple[str, int], Task] = {}
        for task, epoch in started:
            row = self._task(task)
            if row.epoch == epoch and row.worker is not None:
                if not row.released:
                    raise violated(SimulationInvariant.PROCESS_AFTER_COMMITTED_RELEASE, row.story)
                gangs.setdefault((row.job, epoch), row)
        for row in gangs.values():
            self._check_start(row)
        self._checked = state

    def _check_start(self, row: Task) -> None:
        """Check that the other tasks that started with this one were ready."""
        siblings = [_read_task(doc) for doc in self._database.tasks[row.job].values()]
        start_set = [
            task for task in siblings if task.epoch == row.epoch and task.worker is not None
        ]
        if len({task.worker for task in start_set}) == 1:
            return
        for task in start_set:
            machine = self._machines[task.worker or ""]
            if (task.id, task.epoch) not in machine.prepared:
                detail = f"{row.id} runs, not ready: {task.story}"
                raise violated(SimulationInvariant.PROCESS_AFTER_ALL_ARE_READY, detail)

    def _check_devices(self) -> None:
        for machine in self._machines.values():
            used: dict[str, int] = {}
            for (task, _), process in machine.processes.items():
                job = self.job(split_task(task)[0])
                gpu = WHOLE_DEVICE if job is None else job.spec.roles[0].resources.get("gpu", 0)
                for device in process.devices:
                    used[device] = used.get(device, 0) + min(gpu, WHOLE_DEVICE)
            for device, share in used.items():
                if share > WHOLE_DEVICE:
                    detail = f"{device} of {machine.name} by {sorted(machine.processes)}"
                    raise violated(SimulationInvariant.DEVICES_ARE_NOT_OVERUSED, detail)

    def _check_records(self) -> None:
        for seq in range(self._last_seq + 1, self._database.last_seq + 1):
            row = self._database.records.get(seq)
            if row is not None:
                record = rows.record_from(row.doc)
                if isinstance(record, TaskFailed):
                    self._check_failure(record)
                elif isinstance(record, ElementsRetryRequested):
                    # The failures of retried elements are forgotten.
                    for job in [job for job in self._failures if job.startswith(record.job + "[")]:
                        del self._failures[job]
        self._last_seq = self._database.last_seq

    def _check_failure(self, record: TaskFailed) -> None:
        job = self.job(record.job)
        if job is None or record.how is TaskEnding.STOPPED:
            return
        # No simulated job runs long enough for its failures to be forgotten, and one failure of a
        # gang is recorded at most once for each task.
        self._failures[job.id] += 1
        if self._failures[job.id] > job.spec.max_retries * job.spec.size:
            raise violated(SimulationInvariant.FAILURES_END_A_JOB, f"job {job.id}")
        if record.how is TaskEnding.VANISHED:
            self._check_vanished(record)

    def _check_vanished(self, record: TaskFailed) -> None:
        attempt = (f"{record.job}.{record.task}", record.attempt)
        machine = self._machines[record.worker or ""]
        if attempt in machine.processes and machine.is_up:
            raise violated(SimulationInvariant.VANISHED_PROCESSES_ARE_DEAD, f"{attempt}")
