"""`phalanx simulate`: replay a trace of jobs through the planner, and measure."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.formatting import plural
from phalanx.cli.options import Switch, decimal, one_of, quiet_option, whole_number
from phalanx.cli.output import Json, be_quiet, note, print_json, print_table, warn

if TYPE_CHECKING:
    from phalanx.plan.model import OrderKey
    from phalanx.sim.policies import ReplayPolicy
    from phalanx.sim.replay import ReplaySettings
    from phalanx.sim.results import ReplayResult
    from phalanx.sim.traces import Trace

_TRACE, _POLICY = "Trace", "Policy"
#: Stands for all baselines in `--compare`.
_BASELINES = "baselines"


class Rounding(StrEnum):
    EXACT = "exact"
    ROUND = "round"


def _file(flag: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar="FILE", help=text, rich_help_panel=_TRACE
    )
    return option


Jobs = Annotated[
    Path, _file("--jobs", "CSV file with job_id, submit_s, duration_s, user_or_vc, gang_size, …")
]
Nodes = Annotated[Path, _file("--nodes", "CSV file with node, gpus, cpus, mem_mb.")]
Queues = Annotated[
    Path | None, _file("--queues", "CSV file with queue, weight, quota_gpu, limit_gpu.")
]
NodesLimit = Annotated[
    int | None,
    typer.Option(
        "--nodes-limit",
        metavar="NUMBER",
        parser=whole_number(1),
        help="Use only this many nodes of the file.",
        rich_help_panel=_TRACE,
    ),
]
Estimate = Annotated[
    float,
    typer.Option(
        "--estimate",
        metavar="FACTOR",
        parser=decimal(1, 1000),
        help="Ratio of time limits to actual durations.",
        rich_help_panel=_POLICY,
    ),
]
Limits = Annotated[
    Rounding,
    typer.Option(
        "--limits",
        metavar="exact|round",
        parser=one_of(Rounding),
        help="Use exact time limits, or round them up to 1m, 2m, 5m, … 12h, 1d, ….",
        rich_help_panel=_POLICY,
    ),
]
PlanEvery = Annotated[
    float,
    typer.Option(
        "--plan-every",
        metavar="SECONDS",
        parser=decimal(0, 86_400),
        help="Shortest time between two plans while jobs are pending.",
        rich_help_panel=_POLICY,
    ),
]
Order = Annotated[
    str,
    typer.Option(
        "--order",
        metavar="KEYS",
        help="Order of pending jobs in a queue: priority, size, created, shortest and user, in any"
        " order.",
        rich_help_panel=_POLICY,
    ),
]
Backfill = Annotated[
    Switch,
    typer.Option(
        "--backfill",
        metavar="on|off",
        parser=one_of(Switch),
        help="Start short jobs before the reserved start of a large gang.",
        rich_help_panel=_POLICY,
    ),
]
MaxWait = Annotated[
    float,
    typer.Option(
        "--max-wait",
        metavar="FACTOR",
        parser=decimal(0, 1000),
        help="The setting max_wait: the longest wait, as a multiple of the time limit and of the"
        " median wait.",
        rich_help_panel=_POLICY,
    ),
]
HalfLife = Annotated[
    float,
    typer.Option(
        "--share-half-life",
        metavar="SECONDS",
        parser=decimal(0, 31_536_000),
        help="The setting share_half_life: how long unused shares are remembered.",
        rich_help_panel=_POLICY,
    ),
]
Compare = Annotated[
    list[str] | None,
    typer.Option(
        "--compare",
        metavar="POLICY",
        help="Replay under this policy too; repeat for more: fcfs, easy, sjf, las, no-backfill,"
        " size-first, created-first; baselines: the first four.",
        rich_help_panel=_POLICY,
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report with plots.")
]


def simulate(  # noqa: PLR0913
    *,
    jobs: Jobs,
    nodes: Nodes,
    queues: Queues = None,
    nodes_limit: NodesLimit = None,
    order: Order = "priority,size,shortest",
    backfill: Backfill = Switch.ON,
    max_wait: MaxWait = 10.0,
    share_half_life: HalfLife = 0.0,
    estimate: Estimate = 1.0,
    limits: Limits = Rounding.EXACT,
    plan_every: PlanEvery = 1.0,
    compare: Compare = None,
    report: Report = None,
    quiet: Annotated[bool, quiet_option()] = False,
    as_json: Json = False,
) -> None:
    """Replay a trace of jobs through the planner, and measure.

    phalanx simulate --jobs jobs.csv --nodes nodes.csv --compare fcfs --report report.html
    """
    from phalanx.core.time_units import SECOND  # noqa: PLC0415
    from phalanx.plan.model import PlannerPolicy  # noqa: PLC0415
    from phalanx.sim.policies import ReplayPolicy, replay_trace  # noqa: PLC0415
    from phalanx.sim.replay import ReplaySettings  # noqa: PLC0415
    from phalanx.sim.traces import TraceError, read_trace  # noqa: PLC0415

    be_quiet(quiet)
    settings = ReplaySettings(estimate, limits is Rounding.ROUND, round(plan_every * SECOND))
    rules = PlannerPolicy(
        order=_order(order),
        backfill=backfill is Switch.ON,
        max_wait=max_wait,
        share_half_life=round(share_half_life * SECOND),
    )
    policies = [ReplayPolicy("phalanx", rules), *_compared(compare or [])]
    try:
        trace = read_trace(jobs, nodes, queues, nodes_limit)
    except TraceError as error:
        end(Status.USAGE, str(error))
    _warn_of_misfits(trace)
    results = []
    for policy in policies:
        note(f"replaying {len(trace.jobs):,} jobs under {policy.name}")
        results.append(replay_trace(trace, policy, settings))
    if report is not None:
        _write(report, jobs, trace, settings, results)
    if as_json:
        print_json(results)
    else:
        _print(results)


def _order(order: str) -> "tuple[OrderKey, ...]":
    from phalanx.plan.model import OrderKey  # noqa: PLC0415

    keys: list[OrderKey] = []
    for word in order.split(","):
        if word.strip() not in list(OrderKey) or word.strip() in keys:
            names = ", ".join(OrderKey)
            end(Status.USAGE, f"--order is {order!r}; write each of {names} at most once")
        keys.append(OrderKey(word.strip()))
    return tuple(keys)


def _compared(names: list[str]) -> "list[ReplayPolicy]":
    from phalanx.sim.baselines import BaselineRule  # noqa: PLC0415
    from phalanx.sim.policies import POLICIES  # noqa: PLC0415

    wanted: list[str] = []
    for name in names:
        if name not in (*POLICIES, _BASELINES):
            choices = ", ".join([*POLICIES, _BASELINES])
            end(Status.USAGE, f"--compare is {name!r}; write one of {choices}")
        wanted += BaselineRule if name == _BASELINES else [name]
    return [POLICIES[name] for name in dict.fromkeys(wanted)]


def _warn_of_misfits(trace: "Trace") -> None:
    misfits = list(trace.misfits.items())
    for job, why in misfits[:5]:
        warn(f"job {job} is left out, it will not start: {why}")
    if (more := len(misfits) - 5) > 0:
        warn(f"{more:,} more {'job is' if more == 1 else 'jobs are'} left out")
    if not trace.jobs:
        end(Status.USAGE, "no job of the trace fits the nodes and the limits; nothing to replay")


def _print(results: "list[ReplayResult]") -> None:
    from phalanx.sim.report import summary, wait_table, waits_by_size  # noqa: PLC0415

    _print_numbers(*summary(results))
    if len(results) > 1:
        typer.echo("\nwait time by gang size, all policies")
        _print_numbers(*waits_by_size(results))
    for result in results:
        for group, column, waits in (
            ("gang size", "tasks", result.wait_by_size),
            ("queue", "queue", result.wait_by_queue),
        ):
            typer.echo(f"\nwait time by {group}, {result.policy}")
            _print_numbers(*wait_table(column, waits))


def _print_numbers(head: list[str], rows: list[list[str]]) -> None:
    """Print a table of which all columns but the first are numbers."""
    print_table([head[0], *(f"#{name}" for name in head[1:]), ""], [[*row, ""] for row in rows])


def _write(
    path: Path,
    jobs: Path,
    trace: "Trace",
    settings: "ReplaySettings",
    results: "list[ReplayResult]",
) -> None:
    from phalanx.core.time_units import SECOND  # noqa: PLC0415
    from phalanx.sim.report import page  # noqa: PLC0415

    nodes = f"{plural(len(trace.nodes), 'node')} with {trace.gpu / 1000:,g} GPUs"
    queues = plural(len(trace.queues), "queue")
    duration = "its actual duration"
    if settings.estimate != 1:
        duration = f"{settings.estimate:g} times {duration}"
    facts = [
        f"{len(trace.jobs):,} jobs of {jobs.name} in {queues}, on {nodes}.",
        f"The time limit of a job is {duration}{', rounded up' if settings.rounded else ''}.",
        f"While jobs are pending, plans are at least {settings.plan_every / SECOND:g} s apart.",
    ]
    try:
        path.write_text(page(f"Replay of {jobs.name}", facts, results), encoding="utf-8")
    except OSError as error:
        end(Status.USAGE, f"{path}: {error.strerror}")
    note(f"report written to {path}")
