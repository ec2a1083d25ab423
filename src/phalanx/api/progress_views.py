"""Views of the progress that tasks have reported, computed when they are asked for."""

from collections.abc import Sequence
from statistics import median_high

from phalanx.core.gang import rank_in
from phalanx.core.model import Task
from phalanx.core.states import State
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.progress_board import JobBoard, TaskBoard
from phalanx.wire.progress import JobProgress, LagView, ProgressView, RankProgress, ValuePoint
from phalanx.wire.times import iso_time

#: A rank lags if it is this many steps and this much time behind the median rank.
_LAG_STEPS = 2
_LAG_S = 3.0
#: Without a step for so long, and for several times the usual time of a step, there is no estimate.
_IDLE_S = 30.0
_IDLE_STEPS = 5

#: A task's number, and what it has reported.
_Report = tuple[int, TaskBoard]


def progress_view(
    board: JobBoard | None, tasks: Sequence[Task], now: Micros
) -> ProgressView | None:
    """The progress of a job; None if none of its tasks has reported a step.

    `tasks` are those of an unfinished job; without them, all reports count.
    """
    if board is None:
        return None
    reports = _counted(board, tasks)
    if not reports:
        return None
    index, slowest = min(reports, key=lambda report: (report[1].step or 0, report[0]))
    lowest = min(board.tasks.items(), key=lambda report: (not report[1].values, report[0]))[1]
    return ProgressView(
        step=slowest.step or 0,
        at=iso_time(max(task.at for _, task in reports)),
        total=slowest.total,
        rate=slowest.rate if tasks else None,
        eta_s=_eta_s([task for _, task in reports], now) if tasks else None,
        values=dict(lowest.values),
        lagging=_lag(board, index, tasks) if tasks else None,
    )


def _counted(board: JobBoard, tasks: Sequence[Task]) -> list[_Report]:
    """The reports of running tasks with a step; if some have a total, of those only."""
    reports = _current(board, tasks)
    if tasks:
        running = [r for r in reports if tasks[r[0]].state in (State.RUNNING, State.PREEMPTING)]
        reports = running or reports
    with_total = [report for report in reports if report[1].total is not None]
    return with_total or reports


def _current(board: JobBoard, tasks: Sequence[Task]) -> list[_Report]:
    """The reports with a step, of the present attempt of each task."""
    reports = [(index, task) for index, task in board.tasks.items() if task.step is not None]
    if not tasks:
        return reports
    return [r for r in reports if r[0] < len(tasks) and tasks[r[0]].epoch == r[1].epoch]


def _eta_s(reports: list[TaskBoard], now: Micros) -> float | None:
    """The time until the last rank reaches its last step; None if that cannot be estimated."""
    times = []
    for task in reports:
        if task.total is None or task.step is None or task.step >= task.total:
            continue
        rate, idle_s = task.rate, (now - task.at) / SECOND
        if rate is None or idle_s > max(_IDLE_S, _IDLE_STEPS / rate):
            return None
        times.append(max(0.0, (task.total - task.step) / rate - idle_s))
    return max(times, default=None)


def _lag(board: JobBoard, slowest: int, tasks: Sequence[Task]) -> LagView | None:
    """The slowest running task, if it lags. Tasks that are done count for the median."""
    reports = _current(board, tasks)
    steps = {index: task.step or 0 for index, task in reports}
    behind = median_high(steps.values()) - steps[slowest]
    rates = [rate for _, task in reports if (rate := task.rate) is not None]
    if behind < _LAG_STEPS or not rates:
        return None
    behind_s = behind / median_high(rates)
    if behind_s < _LAG_S:
        return None
    rank, worker = rank_in(tasks, slowest), tasks[slowest].worker
    return LagView(slowest, rank, steps[slowest], behind, round(behind_s, 1), worker)


def job_progress(
    board: JobBoard | None, tasks: Sequence[Task], now: Micros, *, is_live: bool
) -> JobProgress:
    if board is None:
        return JobProgress()
    ranks = tuple(
        RankProgress(
            task=index,
            rank=rank_in(tasks, index),
            step=reported.step,
            total=reported.total,
            rate=reported.rate,
            at=iso_time(reported.at) if reported.step is not None else None,
            worker=tasks[index].worker,
            values=dict(reported.values),
        )
        for index, reported in sorted(board.tasks.items())
        if index < len(tasks)
    )
    history = {
        name: tuple(ValuePoint(step, value) for step, value in values.points())
        for name, values in sorted(board.history.items())
    }
    return JobProgress(progress_view(board, tasks if is_live else (), now), ranks, history)
