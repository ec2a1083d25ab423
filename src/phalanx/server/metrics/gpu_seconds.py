"""GPU-seconds used by tasks: added up when a task ends."""

from phalanx.core.cluster import Cluster
from phalanx.core.ledger import gpu_seconds
from phalanx.core.model import role_of
from phalanx.core.node import GPU
from phalanx.core.records import Record, TaskDone, TaskFailed, TaskStopped, TaskStopTimedOut
from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import Micros


class GpuSeconds:
    def __init__(self) -> None:
        self.used_gpu_s = 0.0
        #: By job and task index: since when the task has run, and on how many thousandths of a GPU.
        self._running: dict[str, dict[int, tuple[Micros, int]]] = {}

    def load(self, cluster: Cluster) -> None:
        """Begin with the tasks that run already."""
        self._running.clear()
        for gang in cluster.gangs.values():
            for task in gang.started():
                self.add_task(gang.job.id, gang.job.spec, task.index, task.released_at or 0)

    def add_task(self, job: str, spec: JobSpec, task: int, at: Micros) -> None:
        """A task that uses GPUs started."""
        thousandths = role_of(spec, task).resources.get(GPU, 0)
        if thousandths:
            self._running.setdefault(job, {}).setdefault(task, (at, thousandths))

    def observe(self, record: Record) -> None:
        """Add what a task has used if the record says that it ended."""
        match record:
            case TaskDone() | TaskStopped() | TaskFailed() | TaskStopTimedOut():
                self._end(record.job, record.task, record.at)
            case _:
                pass

    def _end(self, job: str, task: int, at: Micros) -> None:
        tasks = self._running.get(job)
        if tasks is None:
            return
        since, thousandths = tasks.pop(task, (at, 0))
        if not tasks:
            del self._running[job]
        self.used_gpu_s += gpu_seconds((at - since) * thousandths)
