"""The planner alone: how fast it fills a cluster, follows changes, looks at a long line, and finds
victims. `planner-profile` says where the time of the first plan goes."""

import cProfile
import gc
import pstats
import random
import statistics
import time
from collections.abc import Iterable
from itertools import count

from benchmarks.tables import Goal, table
from phalanx.core.events import Placement
from phalanx.core.model import Queue
from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec.job import HOUR, SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan
from phalanx.plan.model import PendingGang, RoleRequest, RunningGang, RunningTask, TaskRequest
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

NODES = 10_000
GANGS = 10_000
LONG_LINE = 100_000
GPUS = 8
CPUS = 96
SHAPES = 200
QUEUES = 1
CLAIMANTS = 20
FIRSTS = 3
ROUNDS = 7
START: Micros = 1_700_000_000 * SECOND

_FILLING = Goal(at_least=20_000, unit="tasks/s")
_FOLLOWING = Goal(at_most=0.1, unit="of the first plan")
_WAITING = Goal(at_most=0.5, unit="s")
_GROWING = Goal(at_most=12, unit="times as long")
_SEARCHING = Goal(at_most=50, unit="ms each")


class Site:
    """A cluster as the planner sees it, on which its decisions are carried out at once."""

    def __init__(self, nodes: int, gangs: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._numbers = count()
        self._claims: dict[str, PendingGang] = {}
        self._tenants: dict[str, RunningGang] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._tasks_on: dict[str, int] = {}
        self.now = START
        self.state = PlannerState()
        self.state.set_queues({f"q{n}": Queue(f"q{n}") for n in range(QUEUES)})
        for n in range(nodes):
            self._used[f"n{n:06}"] = {}
            self._put_node(f"n{n:06}")
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
        self.submit(gangs)

    def submit(self, gangs: int, priority: int = 0) -> None:
        for _ in range(gangs):
            size, ask = self._random.choice(self._shapes)
            number = next(self._numbers)
            job = f"j-{number:07}"
            part = RoleRequest("worker", ask, tuple(range(size)), size)
            queue = f"q{self._random.randrange(QUEUES)}"
            claim = PendingGang(
                *(job, f"default/{job}", 0, queue, priority, self.now + number),
                size=size,
                roles=(part,),
                need=size,
                since=self.now,
                duration=HOUR,
            )
            self._claims[job] = claim
            self.state.put_pending(claim)

    def leave_line(self) -> None:
        """Nobody waits any more."""
        for job in self._claims:
            self.state.remove_pending(job)
        self._claims.clear()

    def plan(self) -> tuple[Plan, float]:
        """A plan, and the seconds it took."""
        gc.collect()
        began = time.perf_counter()
        made = plan(self.state, self.now)
        took_s = time.perf_counter() - began
        self.state.accept(made)
        return made, took_s

    def carry_out(self, made: Plan) -> int:
        """How many tasks were placed."""
        placed = 0
        for placement in made.reserved():
            self._start(placement)
            placed += len(placement.assignments)
        for node in self._used:
            self._put_node(node)
        return placed

    def _start(self, placement: Placement) -> None:
        claim = self._claims.pop(placement.job)
        self.state.remove_pending(claim.job)
        resources = claim.roles[0].request.resources
        places = tuple(
            RunningTask(each.task, "worker", each.worker, resources, ends_at=self.now + HOUR)
            for each in placement.assignments
        )
        for place in places:
            self._use(place, 1)
        head = (claim.job, claim.name, 0, claim.queue, claim.priority, claim.created_at)
        # It started long ago, so it may be evicted.
        tenant = RunningGang(*head, self.now - HOUR, places, min_available=claim.size)
        self._tenants[claim.job] = tenant
        self.state.put_running(tenant)

    def end_some(self, share: float) -> None:
        """Gangs end that have about this share of the tasks."""
        wanted = share * sum(len(tenant.tasks) for tenant in self._tenants.values())
        touched: set[str] = set()
        ended = 0
        for job in self._random.sample(sorted(self._tenants), len(self._tenants)):
            if ended >= wanted:
                break
            tenant = self._tenants.pop(job)
            self.state.remove_running(job)
            for place in tenant.tasks:
                self._use(place, -1)
                touched.add(place.node)
            ended += len(tenant.tasks)
        for node in sorted(touched):
            self._put_node(node)

    def _use(self, place: RunningTask, sign: int) -> None:
        used = self._used[place.node]
        for resource, amount in place.resources:
            used[resource] = used.get(resource, 0) + sign * amount
        self._tasks_on[place.node] = self._tasks_on.get(place.node, 0) + sign

    def _put_node(self, node: str) -> None:
        size = {"cpu": CPUS * 1000, GPU: GPUS * DEVICE}
        occupants = self._tasks_on.get(node, 0)
        self.state.put_node(node, NodeSpec(size, self._used[node], {}, occupants=occupants))


def _filled(nodes: int, gangs: int) -> tuple[Site, int, float]:
    """A cluster after its first plan; the tasks that were placed, and the seconds of the plan: the
    median of several clusters that are alike."""
    others = [Site(nodes, gangs).plan()[1] for _ in range(FIRSTS - 1)]
    site = Site(nodes, gangs)
    made, took_s = site.plan()
    return site, site.carry_out(made), statistics.median([*others, took_s])


def run() -> None:
    """Print what was measured."""
    print(f"The planner: {NODES:,} nodes of {GPUS} GPUs, {GANGS:,} gangs of {SHAPES} shapes")
    rows: list[tuple[str, str, str]] = []
    site, placed, first_s = _filled(NODES, GANGS)
    rate = placed / first_s
    what = f"first plan, from empty, median of {FIRSTS}"
    rows.append((what, f"{first_s:.2f} s", f"{placed:,} tasks"))
    rows.append(("  tasks placed in a second", f"{rate:,.0f}", _FILLING.verdict(rate)))
    # What was decided is carried out, and the planner sees that there is nothing more to do.
    site.carry_out(site.plan()[0])
    following: list[float] = []
    for _ in range(ROUNDS):
        site.end_some(0.01)
        made, next_s = site.plan()
        site.carry_out(made)
        following.append(next_s)
    next_s = statistics.median(following)
    share = next_s / first_s
    what = f"next plan, 1 % of tasks later, median of {ROUNDS}"
    rows.append((what, f"{next_s * 1e3:.0f} ms", ""))
    rows.append(("  against the first", f"{share:.3f}", _FOLLOWING.verdict(share)))
    site.submit(LONG_LINE)
    site.carry_out(site.plan()[0])
    _, line_s = site.plan()
    rows.append(
        (f"{LONG_LINE:,} more wait, all full", f"{line_s * 1e3:.0f} ms", _WAITING.verdict(line_s))
    )
    rows += _measure_victims(site)
    del site
    _, large_placed, large_s = _filled(10 * NODES, 10 * GANGS)
    growth = large_s / first_s
    what = f"ten times the nodes and gangs, median of {FIRSTS}"
    rows.append((what, f"{large_s:.2f} s", f"{large_placed:,} tasks"))
    rows.append(("  against the first", f"{growth:.1f}", _GROWING.verdict(growth)))
    table(("what", "measured", "goal"), rows)


def _measure_victims(site: Site) -> Iterable[tuple[str, str, str]]:
    """Nobody waits but those who may evict others."""
    site.leave_line()
    site.submit(CLAIMANTS, priority=10)
    made, seconds = site.plan()
    found = sum(isinstance(decision, Evict) for decision in made.decisions)
    each_ms = seconds / CLAIMANTS * 1e3
    what = f"victims for {found} of {CLAIMANTS} claimants"
    return [(what, f"{each_ms:.1f} ms", _SEARCHING.verdict(each_ms))]


def profile() -> None:
    """Where the time of a first plan goes."""
    site = Site(NODES, GANGS)
    profiler = cProfile.Profile()
    profiler.runcall(plan, site.state, site.now)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
