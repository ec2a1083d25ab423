"""What became of every job of a replay, and who used how much when. Kept as it happens."""

from phalanx.core.changes import Changes
from phalanx.core.model import Phase
from phalanx.core.node import GPU
from phalanx.core.spec.job import Micros
from phalanx.core.states import PLACED
from phalanx.sim.traces import Trace

#: (when, number of the queue, thousandths of a GPU more or less).
Step = tuple[Micros, int, int]


class JobHistory:
    def __init__(self, trace: Trace, start: Micros) -> None:
        self.start = start
        self.queues = [queue.name for queue in trace.queues]
        numbers = {name: number for number, name in enumerate(self.queues)}
        #: By job: its queue's number and the thousandths of a GPU of one task.
        self._asks = {
            job.id: (numbers[job.queue], job.resources.get(GPU, 0), job.size) for job in trace.jobs
        }
        #: When each job started first, and when and how it ended.
        self.started: dict[str, Micros] = {}
        self.ended: dict[str, tuple[Micros, Phase]] = {}
        self.used: list[Step] = []
        self.wanted: list[Step] = []
        self._placed: set[tuple[str, int]] = set()

    def note(self, changes: Changes, now: Micros) -> None:
        for job in changes.added:
            queue, gpu, size = self._asks[job]
            self.wanted.append((now, queue, gpu * size))
        more: dict[int, int] = {}
        for key, task in changes.tasks.items():
            is_placed = task.state in PLACED
            if is_placed is not (key in self._placed):
                queue, gpu, _ = self._asks[task.job]
                if is_placed:
                    self._placed.add(key)
                    self.started.setdefault(task.job, now)
                    more[queue] = more.get(queue, 0) + gpu
                else:
                    self._placed.discard(key)
                    more[queue] = more.get(queue, 0) - gpu
        self.used += [(now, queue, gpu) for queue, gpu in more.items()]
        for name in changes.verdicts:
            queue, gpu, size = self._asks[name]
            self.ended[name] = (now, changes.gangs[name].job.phase)
            self.wanted.append((now, queue, -gpu * size))
