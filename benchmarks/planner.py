"""The planner alone: how fast it fills a cluster, follows changes, passes many pending gangs, and
finds victims, in one queue and for many tenants; and how well it packs shared GPUs.
`planner-profile` profiles the first plan."""

import cProfile
import pstats
import random
import statistics
from collections.abc import Iterable

from benchmarks.fractions import run as run_fractions
from benchmarks.planned_cluster import GPUS, PlannedCluster
from benchmarks.tables import Goal, table
from benchmarks.tenants import run as run_tenants
from phalanx.core.model import Queue
from phalanx.core.node import DEVICE, GPU
from phalanx.core.time_units import HOUR
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest

NODES = 10_000
GANGS = 10_000
MORE_PENDING = 100_000
SHAPES = 200
PREEMPTORS = 20
FIRSTS = 3
ROUNDS = 7

_FILLING = Goal(at_least=20_000, unit="tasks/s")
_FOLLOWING = Goal(at_most=0.1, unit="of the first plan")
_PENDING = Goal(at_most=0.5, unit="s")
_GROWING = Goal(at_most=12, unit="times as long")
_SEARCHING = Goal(at_most=50, unit="ms each")


class OneQueue(PlannedCluster):
    """A cluster whose gangs are all in one queue and have few shapes."""

    def __init__(self, nodes: int, gangs: int, seed: int = 1) -> None:
        super().__init__(nodes, [Queue("q")], {}, seed)
        shapes = random.Random(0)
        self._shapes = [
            (
                shapes.randint(1, 64),
                TaskRequest(
                    (("cpu", shapes.randint(1, 8) * 1000), (GPU, shapes.randint(1, 8) * DEVICE))
                ),
            )
            for _ in range(SHAPES)
        ]
        self.submit_some(gangs)

    def submit_some(self, gangs: int, priority: int = 0) -> None:
        for _ in range(gangs):
            size, request = self.random.choice(self._shapes)
            job, created_at = self.new_job()
            role = RoleRequest("worker", request, tuple(range(size)), size)
            self.submit(
                PendingGang(
                    *(job, f"default/{job}", 0, "q", priority, created_at),
                    size=size,
                    roles=(role,),
                    need=size,
                    since=self.now,
                    duration=HOUR,
                )
            )


def _filled(nodes: int, gangs: int) -> tuple[OneQueue, int, float]:
    """A cluster after its first plan, the number of tasks placed, and the seconds of the plan: the
    median of several equal clusters."""
    others = [OneQueue(nodes, gangs).plan()[1] for _ in range(FIRSTS - 1)]
    site = OneQueue(nodes, gangs)
    made, took_s = site.plan()
    return site, site.carry_out(made), statistics.median([*others, took_s])


def run() -> None:
    """Print what was measured, in seconds of CPU time."""
    print(f"The planner: {NODES:,} nodes of {GPUS} GPUs, {GANGS:,} gangs of {SHAPES} shapes")
    rows: list[tuple[str, str, str]] = []
    site, placed, first_s = _filled(NODES, GANGS)
    rate = placed / first_s
    what = f"first plan of an empty cluster, median of {FIRSTS}"
    rows.append((what, f"{first_s:.2f} s", f"{placed:,} tasks"))
    rows.append(("  tasks placed per second", f"{rate:,.0f}", _FILLING.verdict(rate)))
    # One more plan, which finds nothing to start.
    site.carry_out(site.plan()[0])
    following: list[float] = []
    for _ in range(ROUNDS):
        site.end_some(0.01)
        made, next_s = site.plan()
        site.carry_out(made)
        following.append(next_s)
    next_s = statistics.median(following)
    share = next_s / first_s
    what = f"next plan, after 1 % of the tasks ended, median of {ROUNDS}"
    rows.append((what, f"{next_s * 1e3:.0f} ms", ""))
    rows.append(("  relative to the first plan", f"{share:.3f}", _FOLLOWING.verdict(share)))
    site.submit_some(MORE_PENDING)
    site.carry_out(site.plan()[0])
    _, pending_s = site.plan()
    rows.append(
        (
            f"{MORE_PENDING:,} more gangs pending, cluster full",
            f"{pending_s * 1e3:.0f} ms",
            _PENDING.verdict(pending_s),
        )
    )
    rows += _measure_victims(site)
    del site
    _, large_placed, large_s = _filled(10 * NODES, 10 * GANGS)
    growth = large_s / first_s
    what = f"ten times the nodes and gangs, median of {FIRSTS}"
    rows.append((what, f"{large_s:.2f} s", f"{large_placed:,} tasks"))
    rows.append(("  relative to the first plan", f"{growth:.1f}", _GROWING.verdict(growth)))
    table(("what", "measured", "goal"), rows)
    run_tenants()
    run_fractions()


def _measure_victims(site: OneQueue) -> Iterable[tuple[str, str, str]]:
    """Plan for pending gangs of a higher priority only."""
    site.remove_pending()
    site.submit_some(PREEMPTORS, priority=10)
    made, seconds = site.plan()
    found = sum(isinstance(decision, Evict) for decision in made.decisions)
    # The budget of a plan ends the search; the next plan goes on with the other preemptors.
    each_ms = seconds / max(1, found) * 1e3
    plans, slowest_s = 1, seconds
    while made.decisions and site.carry_out(made) and site.pending_jobs:
        made, seconds = site.plan()
        plans, slowest_s = plans + 1, max(slowest_s, seconds)
    what = f"search for victims, each of the {found} found for {PREEMPTORS} preemptors in a plan"
    return [
        (what, f"{each_ms:.1f} ms", _SEARCHING.verdict(each_ms)),
        (f"  plans until all {PREEMPTORS} run, and the slowest", f"{plans}", f"{slowest_s:.2f} s"),
    ]


def profile() -> None:
    """Print the profile of a first plan."""
    site = OneQueue(NODES, GANGS)
    profiler = cProfile.Profile()
    profiler.runcall(plan, site.state, site.now)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
