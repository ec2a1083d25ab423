"""Progress as text: it fits its width, and leaves out what matters least; plots of values."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.cli import formatting
from phalanx.cli.plot import plot
from phalanx.cli.progress_text import percent, progress_cell, progress_line, rate_text
from phalanx.wire.progress import LagView, ProgressView


def a_view(**fields: Any) -> ProgressView:
    at = formatting.now().isoformat()
    values: dict[str, float | None] = {"loss": 0.25, "lr": 1e-3}
    view = ProgressView(120, at, total=500, rate=12.3, eta_s=31.0, values=values)
    return replace(view, **fields)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (
            90,
            "█████░░░░░░░░░░░░░░░ step 120 of 500 (24%), 12 steps/s, 31s left, loss 0.25, lr 0.001",
        ),
        (80, "█████░░░░░░░░░░░░░░░ step 120 of 500 (24%), 12 steps/s, 31s left, loss 0.25"),
        (70, "██░░░░░░░░ step 120 of 500 (24%), 12 steps/s, 31s left, loss 0.25"),
        (50, "██░░░░░░░░ step 120 of 500 (24%), 31s left"),
        (35, "step 120 of 500 (24%), 31s left"),
        (10, "step 120 o"),
    ],
)
def test_a_line_leaves_out_what_matters_least_if_it_is_too_wide(width: int, line: str) -> None:
    assert progress_line(a_view(), width) == line


def test_the_rank_that_lags_is_named_before_values() -> None:
    lag = LagView(3, 3, 100, 20, 14.0, "w-2")
    line = progress_line(a_view(lagging=lag), 80)
    assert line == "██░░░░░░░░ step 120 of 500 (24%), 31s left, rank 3 on w-2 lags by 20 steps"


def test_without_a_total_there_is_no_bar_and_no_percentage() -> None:
    view = a_view(total=None, eta_s=None, values={"loss": None})
    assert progress_line(view, 80) == "step 120, 12 steps/s, loss nan"
    assert progress_cell(view, with_bar=True) == "step 120"


def test_an_old_step_has_its_age() -> None:
    at = (formatting.now() - timedelta(minutes=3)).isoformat()
    view = ProgressView(120, at, total=500, rate=12.0)
    assert progress_line(view, 80).endswith("step 120 of 500 (24%), 12 steps/s, last step 3m ago")


def test_cells_have_a_bar_where_there_is_room() -> None:
    assert progress_cell(a_view(), with_bar=True) == "██░░░░░░░░ 24%, 31s left"
    assert progress_cell(a_view(), with_bar=False) == "24%, 31s left"
    assert progress_cell(None, with_bar=True) == ""


@pytest.mark.parametrize(
    ("step", "total", "text"),
    [(0, 5, "0%"), (999, 1000, "99%"), (5, 5, "100%"), (9, 5, "100%"), (-1, 5, "0%"), (1, 0, "0%")],
)
def test_a_percentage_is_complete_only_at_the_end(step: int, total: int, text: str) -> None:
    assert percent(step, total) == text


def test_rates_below_one_are_times_per_step() -> None:
    assert [rate_text(rate) for rate in (None, 123.4, 3.44, 0.25, 1 / 300)] == [
        "",
        "123 steps/s",
        "3.4 steps/s",
        "4s/step",
        "5m/step",
    ]


def test_a_plot_has_the_range_of_values_and_steps_and_marks_what_is_not_a_number() -> None:
    points = [(step, None if step == 5 else 10.0 - step) for step in range(11)]
    lines = plot(points, 30, height=4)
    assert max(map(len, lines)) <= 30
    assert lines[0].startswith("10 ┤")
    assert lines[3].startswith(" 0 ┤")
    assert lines[4].count("x") == 1
    assert lines[5].split() == ["0", "10"]


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, None), (2, None)]])
def test_fewer_than_two_values_have_no_plot(points: list[tuple[int, float | None]]) -> None:
    assert plot(points, 80) == []


def test_extreme_values_can_be_plotted() -> None:
    assert plot([(1, -1.7e308), (2, 1.7e308), (3, 0.0)], 80)
    assert plot([(1, 2.0), (2, 2.0)], 80)
