"""The progress that tasks report: latest steps and values of each, and a history of values.

In memory only, and bounded: the jobs that reported last, with a history that becomes coarser as it
grows. A new leader begins with an empty board, which the next reports fill.
"""

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterator

from phalanx.core.ids import split_task
from phalanx.core.spec.watch import is_value_name
from phalanx.core.time_units import SECOND, Micros
from phalanx.wire.sync import VALUES_LIMIT, TaskProgress

#: Jobs on the board, also finished ones.
_MOST_JOBS = 4000
#: Points in the history of one value.
_MOST_POINTS = 240
#: The rate of a task is taken over one to two of these intervals.
_RATE_INTERVAL: Micros = 15 * SECOND


class ValueHistory:
    """Steps and values of one task. When it is full, every second point is dropped."""

    __slots__ = ("_skipped", "_stride", "steps", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")
        self._stride = 1
        self._skipped = 0

    def add(self, step: int, value: float | None) -> None:
        while self.steps and self.steps[-1] >= step:  # the task has resumed at an earlier step
            self.steps.pop()
            self.values.pop()
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.steps.append(step)
        self.values.append(math.nan if value is None else value)
        if len(self.steps) > _MOST_POINTS:
            self.steps, self.values = self.steps[::2], self.values[::2]
            self._stride *= 2

    def points(self) -> Iterator[tuple[int, float | None]]:
        for step, value in zip(self.steps, self.values, strict=True):
            yield step, value if math.isfinite(value) else None


class TaskBoard:
    """The latest reports of one task."""

    __slots__ = ("_newer", "_older", "at", "epoch", "step", "total", "values")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.at: Micros = 0  #: of the last step
        self.step: int | None = None
        self.total: int | None = None
        self.values: dict[str, float | None] = {}
        #: Two points of time and step, between which and now the rate is taken.
        self._older: tuple[Micros, int] | None = None
        self._newer: tuple[Micros, int] | None = None

    def note(self, at: Micros, progress: TaskProgress) -> None:
        if progress.total is not None:
            self.total = progress.total
        if progress.step is not None:
            self._note_step(at, progress.step)

    def _note_step(self, at: Micros, step: int) -> None:
        if self._newer is None or self.step is None or step < self.step:
            self._older = self._newer = (at, step)
        elif at - self._newer[0] >= _RATE_INTERVAL:
            self._older, self._newer = self._newer, (at, step)
        self.at, self.step = at, step

    @property
    def rate(self) -> float | None:
        """Steps per second; None before two reports."""
        if self._older is None or self.step is None:
            return None
        began_at, began = self._older
        if self.at <= began_at or self.step <= began:
            return None
        return (self.step - began) * SECOND / (self.at - began_at)


class JobBoard:
    """The reports of all tasks of one job, by the number of the task."""

    __slots__ = ("_lead", "history", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[int, TaskBoard] = {}
        #: By value, of the task with the lowest number that reports values.
        self.history: dict[str, ValueHistory] = {}
        self._lead: int | None = None

    def note(self, index: int, epoch: int, at: Micros, progress: TaskProgress) -> None:
        task = self.tasks.get(index)
        if task is None or task.epoch != epoch:
            task = self.tasks[index] = TaskBoard(epoch)
        task.note(at, progress)
        if not progress.values:
            return
        for name, value in progress.values.items():
            if name in task.values or (len(task.values) < VALUES_LIMIT and is_value_name(name)):
                task.values[name] = value
        if self._lead is None or index < self._lead:
            self._lead = index
            self.history.clear()
        if index == self._lead and task.step is not None:
            for name in task.values.keys() & progress.values.keys():
                history = self.history.get(name)
                if history is None:
                    if len(self.history) >= VALUES_LIMIT:
                        continue
                    history = self.history[name] = ValueHistory()
                history.add(task.step, progress.values[name])


class ProgressBoard:
    def __init__(self) -> None:
        self._jobs: OrderedDict[str, JobBoard] = OrderedDict()
        self._term = 0

    def begin_term(self, term: int) -> None:
        """Forget what was reported under another term: reports can have gone to another leader."""
        if term != self._term:
            self._term = term
            self._jobs.clear()

    def note(self, task: str, epoch: int, at: Micros, progress: TaskProgress) -> None:
        """Take a report of a task."""
        job, index = split_task(task)
        board = self._jobs.get(job)
        if board is None:
            board = self._jobs[job] = JobBoard()
            if len(self._jobs) > _MOST_JOBS:
                self._jobs.popitem(last=False)
        else:
            self._jobs.move_to_end(job)
        board.note(index, epoch, at, progress)

    def job(self, job: str) -> JobBoard | None:
        return self._jobs.get(job)
