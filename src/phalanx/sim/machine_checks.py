"""What must be true of the machines as they really are, whatever the servers believe.

No process before its release is committed and every agent of its start set was ready; no attempt
run twice; no device used by two processes at once; no task given up for vanished whose process
lives; no job that goes on failing; nothing that was acknowledged missing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from phalanx.core.causes import TaskEnding
from phalanx.core.ids import split_task
from phalanx.core.model import Job, Task
from phalanx.core.records import TaskFailed
from phalanx.sim.machine import SimulatedMachine
from phalanx.store import rows
from phalanx.store.memory import MemoryDatabase

WHOLE = 1000


class MachineChecks:
    def __init__(self, database: MemoryDatabase, machines: Sequence[SimulatedMachine]) -> None:
        self._database = database
        self._machines = {machine.name: machine for machine in machines}
        self._last_seq = 0
        #: Tasks that fell, by job.
        self._failures: Counter[str] = Counter()

    def job(self, job: str) -> Job | None:
        """As it is in the database."""
        row = self._database.jobs.get(job)
        return None if row is None else rows.job_from(row.doc)

    def _task(self, task: str) -> Task:
        job, index = split_task(task)
        return rows.task_from(self._database.tasks[job][index])

    def check(self, acknowledged: Iterable[str]) -> None:
        """Raise AssertionError on the first untruth."""
        for job in acknowledged:
            if job not in self._database.jobs:
                raise AssertionError(f"bug: job {job} was acknowledged and is not in the store")
        self._check_starts()
        self._check_devices()
        self._check_records()

    def _check_starts(self) -> None:
        started = [attempt for machine in self._machines.values() for attempt in machine.started]
        if len(started) != len(set(started)):
            twice = sorted({attempt for attempt in started if started.count(attempt) > 1})
            raise AssertionError(f"bug: these attempts were run twice: {twice}")
        for task, epoch in started:
            row = self._task(task)
            if row.epoch == epoch and row.worker is not None:
                self._check_start(row)

    def _check_start(self, row: Task) -> None:
        if not row.released:
            raise AssertionError(f"bug: a process before its release: {row.story}")
        mates = [rows.task_from(doc) for doc in self._database.tasks[row.job].values()]
        start_set = [task for task in mates if task.epoch == row.epoch and task.worker is not None]
        if len({task.worker for task in start_set}) == 1:
            return
        for task in start_set:
            machine = self._machines[task.worker or ""]
            if (task.id, task.epoch) not in machine.prepared:
                raise AssertionError(
                    f"bug: {row.id} runs and nobody was ready for its mate: {task.story}"
                )

    def _check_devices(self) -> None:
        for machine in self._machines.values():
            used: dict[str, int] = {}
            for (task, _), process in machine.processes.items():
                job = self.job(split_task(task)[0])
                gpu = WHOLE if job is None else job.spec.roles[0].resources.get("gpu", 0)
                for device in process.devices:
                    used[device] = used.get(device, 0) + min(gpu, WHOLE)
            for device, share in used.items():
                if share > WHOLE:
                    raise AssertionError(
                        f"bug: device {device} of {machine.name} is used by more than fits: "
                        f"{sorted(machine.processes)}"
                    )

    def _check_records(self) -> None:
        for seq in range(self._last_seq + 1, self._database.last_seq + 1):
            row = self._database.records.get(seq)
            if row is not None:
                record = rows.record_from(row.doc)
                if isinstance(record, TaskFailed):
                    self._check_failure(record)
        self._last_seq = self._database.last_seq

    def _check_failure(self, record: TaskFailed) -> None:
        job = self.job(record.job)
        if job is None or record.how is TaskEnding.STOPPED:
            return
        # No job here runs long enough for its failures to be forgiven, and no failure takes more
        # than all of its tasks.
        self._failures[job.id] += 1
        if self._failures[job.id] > job.spec.max_retries * job.spec.size:
            raise AssertionError(f"bug: job {job.id} goes on failing")
        if record.how is TaskEnding.VANISHED:
            self._check_vanished(record)

    def _check_vanished(self, record: TaskFailed) -> None:
        attempt = (f"{record.job}.{record.task}", record.attempt)
        machine = self._machines[record.worker or ""]
        if attempt in machine.processes and machine.is_up:
            raise AssertionError(f"bug: {attempt} was given up for vanished and lives")
