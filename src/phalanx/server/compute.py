"""GPU-seconds: how many were given to tasks, and how many of them came to nothing.

What an attempt did since the last safe point is lost when it is stopped and its gang saved no
complete set of checkpoints on the way.
"""

from phalanx.core.cluster import Cluster
from phalanx.core.model import Record, role_of
from phalanx.core.node import GPU
from phalanx.core.spec import JobSpec, Micros

_ENDED_WELL = "TaskDone"
_STOPPED = ("TaskStopped", "TaskFailed", "StopTimedOut")
_SAVED = "CheckpointSetSaved"

_MICROS_AND_THOUSANDTHS = 1_000_000 * 1000


class Compute:
    def __init__(self) -> None:
        self.used_gpu_s = 0.0
        self.lost_gpu_s = 0.0
        #: job → what its running attempts have: task → (since, thousandths of a GPU).
        self._running: dict[str, dict[int, tuple[Micros, int]]] = {}
        self._safe_at: dict[str, Micros] = {}
        #: job → what the present drain will have cost if nothing is saved.
        self._at_stake: dict[str, float] = {}

    def load(self, cluster: Cluster) -> None:
        """Begin with what runs already."""
        self._running.clear()
        self._safe_at.clear()
        self._at_stake.clear()
        for gang in cluster.gangs.values():
            if gang.job.safe_at is not None:
                self._safe_at[gang.job.id] = gang.job.safe_at
            for task in gang.started():
                self.start(gang.job.id, gang.job.spec, task.index, task.released_at or 0)

    def start(self, job: str, spec: JobSpec, task: int, at: Micros) -> None:
        thousandths = role_of(spec, task).resources.get(GPU, 0)
        if thousandths:
            self._running.setdefault(job, {}).setdefault(task, (at, thousandths))

    def note(self, record: Record) -> None:
        job = record.job
        if job is None or not (job in self._running or job in self._at_stake):
            return
        if record.kind == "WorkSafe":
            self._safe_at[job] = record.at
        elif record.kind == _SAVED:
            self._at_stake.pop(job, None)
        elif record.kind == _ENDED_WELL or record.kind in _STOPPED:
            self._end(job, record)
        elif record.kind in ("DrainSettled", "JobEnded"):
            lost = self._at_stake.pop(job, 0.0)
            if record.detail.get("outcome", record.detail.get("phase")) != "done":
                self.lost_gpu_s += lost
            self._safe_at.pop(job, None)

    def _end(self, job: str, record: Record) -> None:
        tasks = self._running.get(job, {})
        since, thousandths = tasks.pop(record.task or 0, (record.at, 0))
        if not tasks:
            self._running.pop(job, None)
        self.used_gpu_s += (record.at - since) * thousandths / _MICROS_AND_THOUSANDTHS
        if record.kind != _ENDED_WELL:
            unsafe = max(0, record.at - max(since, self._safe_at.get(job, 0)))
            stake = unsafe * thousandths / _MICROS_AND_THOUSANDTHS
            self._at_stake[job] = self._at_stake.get(job, 0.0) + stake
