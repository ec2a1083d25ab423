"""GPU-seconds that were given to tasks, counted as they end."""

from phalanx.core.cluster import Cluster
from phalanx.core.ledger import gpu_seconds
from phalanx.core.model import role_of
from phalanx.core.node import GPU
from phalanx.core.records import Record, TaskDone, TaskFailed, TaskStopped, TaskStopTimedOut
from phalanx.core.spec.job import JobSpec, Micros


class Compute:
    def __init__(self) -> None:
        self.used_gpu_s = 0.0
        #: job → what its running attempts have: task → (since, thousandths of a GPU).
        self._running: dict[str, dict[int, tuple[Micros, int]]] = {}

    def load(self, cluster: Cluster) -> None:
        """Begin with what runs already."""
        self._running.clear()
        for gang in cluster.gangs.values():
            for task in gang.started():
                self.start(gang.job.id, gang.job.spec, task.index, task.released_at or 0)

    def start(self, job: str, spec: JobSpec, task: int, at: Micros) -> None:
        thousandths = role_of(spec, task).resources.get(GPU, 0)
        if thousandths:
            self._running.setdefault(job, {}).setdefault(task, (at, thousandths))

    def note(self, record: Record) -> None:
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
