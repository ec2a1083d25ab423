"""The progress of a job as text: a bar, the step, the rate, the time left and the latest values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from phalanx.cli import formatting
from phalanx.core.spec.durations import short_duration

if TYPE_CHECKING:
    from phalanx.wire.progress import LagView, ProgressView

_BAR_WIDTH = 20
_SHORT_BAR = 10
#: Without a step for so long, its age is shown.
_OLD_S = 30


def bar(step: int, total: int, width: int = _BAR_WIDTH) -> str:
    """`██████░░░░`."""
    full = round(_fraction(step, total) * width)
    return "█" * full + "░" * (width - full)


def _fraction(step: int, total: int) -> float:
    return 0.0 if total <= 0 else min(1.0, max(0.0, step / total))


def percent(step: int, total: int) -> str:
    """`24%`; 100% only at the end."""
    return f"{int(_fraction(step, total) * 100)}%"


def number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4g}"


def rate_text(rate: float | None) -> str:
    """`12 steps/s`, `3.4 steps/s`, and below one step per second `4.2s/step`."""
    if rate is None:
        return ""
    if rate < 1:
        return f"{short_duration(1 / rate)}/step"
    return f"{rate:.0f} steps/s" if rate >= 10 else f"{rate:.1f} steps/s"


def values_text(values: Mapping[str, float | None]) -> list[str]:
    return [f"{name} {number(value)}" for name, value in values.items()]


class _Parts(NamedTuple):
    """The parts of a line about progress; those that are unknown are empty."""

    step: str  #: `step 120 of 500 (24%)`
    rate: str  #: `12 steps/s`
    left: str  #: `31s left`
    lag: str  #: `rank 3 on w-2 lags by 120 steps`


def _parts(progress: "ProgressView") -> _Parts:
    step, left, lag = f"step {progress.step}", "", ""
    if progress.total is not None:
        step += f" of {progress.total} ({percent(progress.step, progress.total)})"
    idle = (formatting.now() - formatting.parse_time(progress.at)).total_seconds()
    if progress.eta_s is not None:
        left = f"{short_duration(round(progress.eta_s))} left"
    elif idle > _OLD_S and progress.step != progress.total:
        left = f"last step {short_duration(int(idle))} ago"
    if progress.lagging is not None:
        lag = lag_text(progress.lagging)
    return _Parts(step, rate_text(progress.rate), left, lag)


def ended_line(progress: "ProgressView") -> str:
    """The last step of a job that no longer runs."""
    width = 0 if progress.total is None else _BAR_WIDTH
    return _joined(progress, width, _Parts(_parts(progress).step, "", "", ""), [])


def progress_line(progress: "ProgressView", width: int, *, with_values: bool = True) -> str:
    """One line of at most this width: what is least important is left out if it does not fit."""
    parts = _parts(progress)
    values = values_text(progress.values) if with_values else []
    longest, short = (_BAR_WIDTH, _SHORT_BAR) if progress.total is not None else (0, 0)
    without_rate = parts._replace(rate="")
    candidates = [
        *((longest, parts, values[:count]) for count in range(len(values), 0, -1)),
        *((short, parts, values[:count]) for count in range(len(values[:1]), 0, -1)),
        *((bar_width, parts, []) for bar_width in (longest, short)),
        (short, without_rate, []),
        *((0, kept, []) for kept in (parts, without_rate)),
    ]
    lines = (_joined(progress, *candidate) for candidate in candidates)
    fitting = (line for line in lines if cell_len(line) <= width)
    return next(fitting, _joined(progress, 0, without_rate._replace(lag=""), [])[:width])


def _joined(progress: "ProgressView", bar_width: int, parts: _Parts, values: list[str]) -> str:
    line = ", ".join([*filter(None, parts), *values])
    if bar_width and progress.total is not None:
        return f"{bar(progress.step, progress.total, bar_width)} {line}"
    return line


def progress_cell(progress: "ProgressView | None", *, with_bar: bool) -> str:
    """The progress for a column of a table: `████░░ 24%, 31s left`."""
    if progress is None:
        return ""
    if progress.total is None:
        return f"step {progress.step}"
    text = percent(progress.step, progress.total)
    if progress.eta_s is not None:
        text += f", {short_duration(round(progress.eta_s))} left"
    return f"{bar(progress.step, progress.total, _SHORT_BAR)} {text}" if with_bar else text


def lag_text(lag: "LagView") -> str:
    """`rank 3 on w-2 lags by 120 steps`."""
    where = "" if lag.worker is None else f" on {lag.worker}"
    return f"rank {lag.rank}{where} lags by {formatting.plural(lag.behind_steps, 'step')}"
