"""History of a replay: when each job started and ended, and the GPUs that each queue requested and
used over time."""

from phalanx.core.changes import Changes
from phalanx.core.model import Phase
from phalanx.core.node import GPU
from phalanx.core.states import PLACED
from phalanx.core.time_units import Micros
from phalanx.sim.traces import Trace

#: A change: (time, index of the queue, thousandths of a GPU, positive or negative).
Step = tuple[Micros, int, int]


class JobHistory:
    def __init__(self, trace: Trace, start: Micros) -> None:
        self.start = start
        self.queues = [queue.name for queue in trace.queues]
        indices = {name: index for index, name in enumerate(self.queues)}
        #: By job: the index of its queue, thousandths of a GPU of one task, and number of tasks.
        self._requests = {
            job.id: (indices[job.queue], job.resources.get(GPU, 0), job.size) for job in trace.jobs
        }
        #: When each job first started; when each ended, and in which phase.
        self.started: dict[str, Micros] = {}
        self.ended: dict[str, tuple[Micros, Phase]] = {}
        self.used: list[Step] = []
        self.requested: list[Step] = []
        self._placed: set[tuple[str, int]] = set()

    def observe(self, changes: Changes, now: Micros) -> None:
        """Take over what one event changed."""
        for job in changes.added:
            queue, gpu, size = self._requests[job]
            self.requested.append((now, queue, gpu * size))
        if changes.tasks:
            self._count_placed(changes, now)
        for job, _ in changes.verdicts:
            queue, gpu, size = self._requests[job]
            self.ended[job] = (now, changes.gangs[job].job.phase)
            self.requested.append((now, queue, -gpu * size))

    def _count_placed(self, changes: Changes, now: Micros) -> None:
        """Count the tasks that have got a place, and those that have left one."""
        added: dict[int, int] = {}
        for key, task in changes.tasks.items():
            is_placed = task.state in PLACED
            if is_placed is not (key in self._placed):
                queue, gpu, _ = self._requests[task.job]
                if is_placed:
                    self._placed.add(key)
                    self.started.setdefault(task.job, now)
                    added[queue] = added.get(queue, 0) + gpu
                else:
                    self._placed.discard(key)
                    added[queue] = added.get(queue, 0) - gpu
        self.used += [(now, queue, gpu) for queue, gpu in added.items()]
