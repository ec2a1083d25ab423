"""The board of reported progress: rates, histories and bounds, and the views of it."""

import pytest
from tests.driver import Driver, spec

from phalanx.api.progress_views import job_progress, progress_view
from phalanx.core.time_units import SECOND, Micros
from phalanx.engine.progress_board import JobBoard, ProgressBoard, ValueHistory
from phalanx.wire.progress import LagView
from phalanx.wire.sync import TaskProgress

NOW: Micros = 1_700_000_000 * SECOND


def a_gang(size: int) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(size))
    driver.run(job, *"abc"[:size])
    return driver, job


def report(board: JobBoard, index: int, *steps: tuple[float, int], total: int | None = 100) -> None:
    for at_s, step in steps:
        board.note(index, 1, NOW + round(at_s * SECOND), TaskProgress(step, total))


def at(seconds: float) -> Micros:
    return NOW + round(seconds * SECOND)


# One rank


def test_the_rate_is_that_of_the_last_quarter_minute_or_two() -> None:
    driver, job = a_gang(1)
    board = JobBoard()
    report(board, 0, *((second, second) for second in range(20)))
    report(board, 0, *((20 + second, 20 + 2 * second) for second in range(40)))
    view = progress_view(board, driver.gang(job).tasks, at(59))
    assert view is not None
    assert (view.step, view.total) == (98, 100)
    assert view.rate == pytest.approx(2)
    assert view.eta_s == pytest.approx(1)


def test_an_estimate_counts_down_and_ends_if_the_steps_stop() -> None:
    driver, job = a_gang(1)
    board = JobBoard()
    report(board, 0, (0, 0), (10, 10))
    tasks = driver.gang(job).tasks
    estimates = [progress_view(board, tasks, at(second)) for second in (10, 30, 41)]
    assert [view and view.eta_s for view in estimates] == [
        pytest.approx(90),
        pytest.approx(70),
        None,
    ]


def test_slow_steps_have_a_rate_after_the_second_one() -> None:
    board = JobBoard()
    report(board, 0, (0, 1))
    assert board.tasks[0].rate is None
    report(board, 0, (300, 2))
    assert board.tasks[0].rate == pytest.approx(1 / 300)


def test_a_new_attempt_begins_anew() -> None:
    board = JobBoard()
    report(board, 0, (0, 50), (10, 60))
    board.note(0, 2, at(20), TaskProgress(51))
    assert (board.tasks[0].step, board.tasks[0].total, board.tasks[0].rate) == (51, None, None)


# A gang


def test_the_progress_of_a_gang_is_that_of_its_slowest_running_rank() -> None:
    driver, job = a_gang(3)
    board = JobBoard()
    for index, pace in enumerate((4, 1, 4)):
        report(board, index, *((second, pace * second) for second in range(11)))
    view = progress_view(board, driver.gang(job).tasks, at(10))
    assert view is not None
    assert view.step == 10
    assert view.eta_s == pytest.approx(90)
    assert view.lagging == LagView(1, 1, 10, 30, 7.5, "b")
    driver.exit(job, 1)
    after = progress_view(board, driver.gang(job).tasks, at(10))
    assert after is not None
    assert (after.step, after.lagging) == (40, None)


def test_ranks_that_differ_by_the_delay_of_reports_do_not_lag() -> None:
    driver, job = a_gang(3)
    board = JobBoard()
    for index, late_s in enumerate((0.0, 1.0, 0.0)):
        report(board, index, *((n + late_s, 100 * n) for n in range(11)), total=None)
    board.note(1, 1, at(10.5), TaskProgress(900))
    view = progress_view(board, driver.gang(job).tasks, at(11))
    assert view is not None
    assert view.lagging is None


def test_reports_of_an_earlier_attempt_do_not_count_while_the_job_runs() -> None:
    driver, job = a_gang(1)
    board = JobBoard()
    board.note(0, 7, NOW, TaskProgress(5))
    assert progress_view(board, driver.gang(job).tasks, NOW) is None


def test_the_view_of_a_job_has_every_rank_and_the_values_of_the_lowest() -> None:
    driver, job = a_gang(3)
    board = JobBoard()
    for index in (2, 1):
        board.note(index, 1, NOW, TaskProgress(4, values={"loss": float(index)}))
        board.note(index, 1, NOW, TaskProgress(5, values={"loss": None}))
    view = job_progress(board, driver.gang(job).tasks, NOW, is_live=True)
    assert [(rank.rank, rank.worker, rank.step) for rank in view.ranks] == [
        (1, "b", 5),
        (2, "c", 5),
    ]
    assert [(point.step, point.value) for point in view.history["loss"]] == [(4, 1.0), (5, None)]
    assert view.progress is not None
    assert view.progress.values == {"loss": None}


# Bounds


def test_a_long_history_becomes_coarser_and_keeps_its_ends() -> None:
    history = ValueHistory()
    for step in range(100_000):
        history.add(step, float(step))
    points = list(history.points())
    assert 100 < len(points) <= 240
    assert points[0] == (0, 0.0)
    assert points[-1][0] > 99_000


def test_a_history_continues_at_the_step_that_a_task_resumes_from() -> None:
    history = ValueHistory()
    for step in (1, 2, 3, 4):
        history.add(step, float(step))
    history.add(3, 30.0)
    assert list(history.points()) == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_the_board_keeps_few_values_and_the_jobs_that_reported_last() -> None:
    board = ProgressBoard()
    values: dict[str, float | None] = {f"v{n}": 1.0 for n in range(1000)}
    values["a b"] = 1.0
    board.note("j-0.0", 1, NOW, TaskProgress(1, values=values))
    first = board.job("j-0")
    assert first is not None
    assert len(first.tasks[0].values) == len(first.history) == 16
    for n in range(1, 4001):
        board.note(f"j-{n}.0", 1, NOW, TaskProgress(1))
    assert board.job("j-0") is None
    assert board.job("j-1") is not None


def test_a_new_term_begins_with_an_empty_board() -> None:
    board = ProgressBoard()
    board.begin_term(1)
    board.note("j-1.0", 1, NOW, TaskProgress(1))
    board.begin_term(1)
    assert board.job("j-1") is not None
    board.begin_term(2)
    assert board.job("j-1") is None
