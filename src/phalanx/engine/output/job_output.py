"""How much output of a job's tasks is stored, and signals for readers that follow it."""

import asyncio
from collections.abc import Iterable, Mapping

from phalanx.store.protocol import OutputEnd


class AttemptOutput:
    """How far the output of one attempt of a task reaches."""

    def __init__(self, end: int = 0) -> None:
        self.durable = end  #: readers may ask for bytes up to here
        self.end = end  #: the same, including what is being written
        self.worker: str | None = None  #: the worker that may append, once that is known
        self.last_write: asyncio.Future[None] | None = None


class JobOutput:
    """The output of one job's tasks, as the leader knows it."""

    def __init__(self, job: str, ends: Iterable[OutputEnd] = ()) -> None:
        self.job = job
        self._tasks: dict[int, dict[int, AttemptOutput]] = {}
        #: task → the number of its latest arrival, in the order of arrival.
        self._arrivals: dict[int, int] = {}
        self.arrived = 0  #: the number of the latest arrival
        self.events = 0  #: how many events of the job there were
        self._changed = asyncio.Event()
        for each in ends:
            self.add(each.task, each.epoch, AttemptOutput(each.end))

    def attempts(self, task: int) -> Mapping[int, AttemptOutput]:
        """The attempts of a task that have output, by number."""
        return self._tasks.get(task, {})

    def add(self, task: int, attempt: int, output: AttemptOutput) -> AttemptOutput:
        """The output of this attempt; the given one if it had none."""
        return self._tasks.setdefault(task, {}).setdefault(attempt, output)

    def forget(self, task: int, attempt: int) -> None:
        del self._tasks[task][attempt]

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next arrival or event. Take it before reading, so that none is missed."""
        return self._changed

    def arrived_since(self, number: int) -> list[int]:
        """The tasks with new output since that arrival, in the order of arrival."""
        tasks = []
        for task, arrival in reversed(self._arrivals.items()):
            if arrival <= number:
                break
            tasks.append(task)
        return tasks[::-1]

    def note_arrival(self, task: int) -> None:
        self.arrived += 1
        self._arrivals.pop(task, None)
        self._arrivals[task] = self.arrived
        self._signal()

    def note_event(self) -> None:
        self.events += 1
        self._signal()

    def _signal(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
