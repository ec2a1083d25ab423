"""The report on replays: one self-contained HTML page with tables and SVG plots."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from phalanx.core.spec.durations import short_duration
from phalanx.dashboard.files import dashboard_files
from phalanx.sim.results import Distribution, ReplayResult

_WIDTH, _HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
#: Distinguishable with colour vision deficiency.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_MUTED = "var(--pend)"

#: Beside the style sheet of the dashboard.
_STYLE = """
main { max-width: 1000px; }
th, td { text-align: right; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; min-width: 520px; height: auto; } .panel { overflow-x: auto; }
h3 { margin-top: 14px; }
"""


def page(title: str, facts: Sequence[str], results: Sequence[ReplayResult]) -> str:
    """The page, in the design of the dashboard; `facts` are sentences about the trace and the
    settings."""
    colours = {result.policy: _COLOURS[n % len(_COLOURS)] for n, result in enumerate(results)}
    parts = [
        f'<div class="row headline"><h1>{escape(title)}</h1></div>',
        _cards(results[0]),
        _panel("Summary", *map(_note, facts), _table("", *summary(results))),
        _panel(
            "GPUs in use over time",
            _legend(colours | {"requested (first policy)": _MUTED}),
            _usage_plot(results, colours),
        ),
        _panel(
            "Wait time by gang size",
            _note("95th percentile of the time from submission to first start, logarithmic."),
            _legend(colours),
            _bars(_waits(results), colours, short_duration, logarithmic=True),
            _table("All policies", *waits_by_size(results)) if len(results) > 1 else "",
            *(_table(each.policy, *wait_table("tasks", each.wait_by_size)) for each in results),
        ),
        _panel(
            "Fair shares by queue",
            _note("GPU time received, relative to the fair share from weights and requests."),
            _note("Queues exceed 100 % by borrowing idle GPUs. Bars end at 200 %."),
            _legend(colours),
            _bars(_shares(results), colours, lambda value: f"{value:.0%}"),
            *(_table(each.policy, *wait_table("queue", each.wait_by_queue)) for each in results),
        ),
    ]
    style = dashboard_files()["css/app.css"].content.decode() + _STYLE
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>"
        '<header class="top"><b>Phalanx</b><nav><a aria-current="page">Replay</a></nav></header>'
        "<main>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


def _cards(result: ReplayResult) -> str:
    """The answers first: those of the first policy."""
    cards = (
        ("Jobs done", f"{result.done:,}", f"of {result.jobs:,}"),
        ("Mean wait", short_duration(result.wait.mean), f"p95 {short_duration(result.wait.p95)}"),
        ("Longest wait", short_duration(result.wait.longest), ""),
        ("Utilisation", f"{result.utilisation:.1%}", ""),
        ("Fairness (Jain)", f"{result.fairness:.3f}", "1 is equal"),
        ("Evictions", f"{result.evictions:,}", f"{result.gpu_hours_lost:,.1f} GPU-hours lost"),
    )
    return (
        "<div class=cards>"
        + "".join(
            f'<div class=card><div class=k>{escape(name)}</div><div class="v num">{escape(value)}'
            f"</div><div class=s>{escape(more) or '&nbsp;'}</div></div>"
            for name, value, more in cards
        )
        + "</div>"
    )


def _panel(title: str, *parts: str) -> str:
    return f"<section class=panel><h2>{escape(title)}</h2>" + "\n".join(parts) + "</section>"


def _note(sentence: str) -> str:
    return f"<p class=muted>{escape(sentence)}</p>"


# Tables, also for the terminal

Table = tuple[list[str], list[list[str]]]


def summary(results: Sequence[ReplayResult]) -> Table:
    """One row for each measurement, one column for each policy."""
    rows: list[tuple[str, Callable[[ReplayResult], str]]] = [
        ("jobs done", lambda r: f"{r.done:,} of {r.jobs:,}"),
        ("jobs timed out", lambda r: f"{r.timed_out:,}"),
        ("wait time, mean", lambda r: short_duration(r.wait.mean)),
        ("wait time, p50", lambda r: short_duration(r.wait.p50)),
        ("wait time, p95", lambda r: short_duration(r.wait.p95)),
        ("wait time, p99", lambda r: short_duration(r.wait.p99)),
        ("wait time, longest", lambda r: short_duration(r.wait.longest)),
        ("utilisation", lambda r: f"{r.utilisation:.1%}"),
        ("utilisation until the last end", lambda r: f"{r.utilisation_to_end:.1%}"),
        ("slowdown, mean", lambda r: f"{r.slowdown.mean:,.1f}"),
        ("slowdown, p95", lambda r: f"{r.slowdown.p95:,.1f}"),
        ("fairness (Jain)", lambda r: f"{r.fairness:.3f}"),
        ("evictions", lambda r: f"{r.evictions:,}"),
        ("broken reserved starts", lambda r: f"{r.broken_starts:,}"),
        ("GPU-hours lost", lambda r: f"{r.gpu_hours_lost:,.1f}"),
        ("makespan", lambda r: short_duration(r.makespan_s)),
        ("still pending", lambda r: f"{r.still_pending:,}"),
        ("jobs that never fit", lambda r: f"{r.never_fit:,}"),
    ]
    head = ["", *(result.policy for result in results)]
    return head, [[name, *(show(result) for result in results)] for name, show in rows]


def waits_by_size(results: Sequence[ReplayResult]) -> Table:
    """Mean, 95th percentile and longest wait of each gang size, one column for each policy."""
    measures: tuple[tuple[str, Callable[[Distribution], float]], ...] = (
        ("mean", lambda waits: waits.mean),
        ("p95", lambda waits: waits.p95),
        ("longest", lambda waits: waits.longest),
    )
    rows = []
    for size in results[0].wait_by_size:
        for name, of in measures:
            cells = [
                short_duration(of(r.wait_by_size[size])) if size in r.wait_by_size else ""
                for r in results
            ]
            rows.append([f"{size}, {name}", *cells])
    return ["tasks", *(result.policy for result in results)], rows


def wait_table(group: str, waits: Mapping[str, Distribution]) -> Table:
    """Wait times by group, such as queues."""
    head = [group, "jobs", "mean", "p50", "p95", "p99", "longest"]
    return head, [
        [name, f"{s.count:,}", *map(short_duration, (s.mean, s.p50, s.p95, s.p99, s.longest))]
        for name, s in waits.items()
    ]


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    title = f"<h3>{escape(caption)}</h3>\n" if caption else ""
    table = f"<table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f"{title}<div class=scroll>{table}</div>"


# Plots


def _legend(colours: Mapping[str, str]) -> str:
    keys = (
        f'<span><span class=swatch style="background:{colour}"></span>{escape(name)}</span>'
        for name, colour in colours.items()
    )
    return f"<div class=legend>{''.join(keys)}</div>"


def _svg(label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _x(fraction: float) -> float:
    return _LEFT + fraction * (_WIDTH - _LEFT - _RIGHT)


def _y(fraction: float) -> float:
    return _HEIGHT - _BOTTOM - fraction * (_HEIGHT - _TOP - _BOTTOM)


def _grid(marks: Iterable[tuple[float, str]]) -> Iterable[str]:
    """Horizontal lines, each at a fraction of the height and with its label."""
    for fraction, label in marks:
        y = _y(fraction)
        yield (
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            f' stroke="{_MUTED}" stroke-opacity=".35"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        )


def _usage_plot(results: Sequence[ReplayResult], colours: Mapping[str, str]) -> str:
    gpus = results[0].gpus or 1.0
    requested = results[0].series
    top = max(1.0, *(value / gpus for result in results for value in result.series.used))
    longest = max(result.series.hours[-1] for result in results)
    scale = _PercentScale(max(top, max(requested.requested) / gpus))
    parts = list(_grid((scale.fraction(mark), f"{mark:.0%}") for mark in scale.marks()))
    parts += [
        f'<text x="{_x(n / 4):.1f}" y="{_HEIGHT - 12}" text-anchor="{anchor}">'
        f"{short_duration(n / 4 * longest * 3600)}</text>"
        for n, anchor in enumerate(("middle", "middle", "middle", "middle", "end"))
    ]
    lines = [(_MUTED, requested.hours, requested.requested)]
    lines += [(colours[r.policy], r.series.hours, r.series.used) for r in results]
    for colour, hours, values in lines:
        points = " ".join(
            f"{_x(hour / longest):.1f},{_y(scale.fraction(value / gpus)):.1f}"
            for hour, value in zip(hours, values, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
        )
    return _svg("GPUs in use over time", parts)


#: Group → policy → value.
_Groups = Mapping[str, Mapping[str, float]]


def _waits(results: Sequence[ReplayResult]) -> _Groups:
    sizes = results[0].wait_by_size
    return {
        size: {r.policy: r.wait_by_size[size].p95 for r in results if size in r.wait_by_size}
        for size in sizes
    }


def _shares(results: Sequence[ReplayResult]) -> _Groups:
    return {
        queue: {
            r.policy: r.shares[queue].received / r.shares[queue].deserved
            for r in results
            if queue in r.shares and r.shares[queue].deserved > 0
        }
        for queue in results[0].shares
    }


def _bars(
    groups: _Groups,
    colours: Mapping[str, str],
    show: Callable[[float], str],
    *,
    logarithmic: bool = False,
) -> str:
    values = [value for group in groups.values() for value in group.values()]
    top = max(values, default=1.0) or 1.0
    scale = _LogarithmicScale(top) if logarithmic else _PercentScale(top)
    parts = list(_grid((scale.fraction(mark), show(mark)) for mark in scale.marks()))
    slot = 1.0 / max(1, len(groups))
    bar = slot * 0.8 / len(colours)
    for place, (name, group) in enumerate(groups.items()):
        for number, (policy, colour) in enumerate(colours.items()):
            if policy not in group:
                continue
            x = _x(place * slot + slot * 0.1 + number * bar)
            y = _y(scale.fraction(group[policy]))
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{_x(bar) - _x(0):.1f}"'
                f' height="{_y(0) - y:.1f}" fill="{colour}">'
                f"<title>{escape(f'{name}, {policy}: {show(group[policy])}')}</title></rect>"
            )
        parts.append(
            f'<text x="{_x((place + 0.5) * slot):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return _svg("bars by group", parts)


class _PercentScale:
    """A linear scale up to 100 %, or to 200 % if a value is larger; higher values are cut off."""

    def __init__(self, top: float) -> None:
        self._top = min(2.0, max(1.0, top))

    def fraction(self, value: float) -> float:
        return min(value / self._top, 1.0)

    def marks(self) -> list[float]:
        return [mark for mark in (0, 0.5, 1, 1.5, 2) if mark <= self._top]


class _LogarithmicScale:
    """A logarithmic scale from one second, in powers of ten."""

    def __init__(self, top: float) -> None:
        self._decades = max(1, len(str(int(max(1.0, top)))))

    def fraction(self, value: float) -> float:
        return math.log10(max(1.0, value)) / self._decades

    def marks(self) -> list[float]:
        return [10.0**n for n in range(self._decades + 1)]
