"""The planner alone: how fast it fills a cluster, follows changes, passes many pending gangs, and
finds victims. `planner-profile` profiles the first plan."""

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
from phalanx.core.time_units import HOUR, SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan
from phalanx.plan.model import PendingGang, RoleRequest, RunningGang, RunningTask, TaskRequest
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

NODES = 10_000
GANGS = 10_000
MORE_PENDING = 100_000
GPUS = 8
CPUS = 96
SHAPES = 200
QUEUES = 1
PREEMPTORS = 20
FIRSTS = 3
ROUNDS = 7
START: Micros = 1_700_000_000 * SECOND

_FILLING = Goal(at_least=20_000, unit="tasks/s")
_FOLLOWING = Goal(at_most=0.1, unit="of the first plan")
_PENDING = Goal(at_most=0.5, unit="s")
_GROWING = Goal(at_most=12, unit="times as long")
_SEARCHING = Goal(at_most=50, unit="ms each")


class PlannedCluster:
    """A planner state on which decisions are carried out at once."""

    def __init__(self, nodes: int, gangs: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._numbers = count()
        self._pending: dict[str, PendingGang] = {}
        self._running: dict[str, RunningGang] = {}
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
            size, request = self._random.choice(self._shapes)
            number = next(self._numbers)
            job = f"j-{number:07}"
            role = RoleRequest("worker", request, tuple(range(size)), size)
            queue = f"q{self._random.randrange(QUEUES)}"
            gang = PendingGang(
                *(job, f"default/{job}", 0, queue, priority, self.now + number),
                size=size,
                roles=(role,),
                need=size,
                since=self.now,
                duration=HOUR,
            )
            self._pending[job] = gang
            self.state.put_pending(gang)

    def remove_pending(self) -> None:
        """Remove all pending gangs."""
        for job in self._pending:
            self.state.remove_pending(job)
        self._pending.clear()

    def plan(self) -> tuple[Plan, float]:
        """Make a plan; the plan, and the seconds that it took."""
        gc.collect()
        began = time.perf_counter()
        made = plan(self.state, self.now)
        took_s = time.perf_counter() - began
        self.state.accept(made)
        return made, took_s

    def carry_out(self, made: Plan) -> int:
        """Carry out the starts of a plan; the number of tasks placed."""
        placed = 0
        for placement in made.reserved():
            self._start(placement)
            placed += len(placement.assignments)
        for node in self._used:
            self._put_node(node)
        return placed

    def _start(self, placement: Placement) -> None:
        gang = self._pending.pop(placement.job)
        self.state.remove_pending(gang.job)
        resources = gang.roles[0].request.resources
        tasks = tuple(
            RunningTask(each.task, "worker", each.worker, resources, ends_at=self.now + HOUR)
            for each in placement.assignments
        )
        for task in tasks:
            self._use(task, 1)
        identity = (gang.job, gang.name, 0, gang.queue, gang.priority, gang.created_at)
        # It has run for long enough to be evicted.
        running = RunningGang(*identity, self.now - HOUR, tasks, min_available=gang.size)
        self._running[gang.job] = running
        self.state.put_running(running)

    def end_some(self, share: float) -> None:
        """End gangs with about this share of the running tasks."""
        wanted = share * sum(len(gang.tasks) for gang in self._running.values())
        touched: set[str] = set()
        ended = 0
        for job in self._random.sample(sorted(self._running), len(self._running)):
            if ended >= wanted:
                break
            gang = self._running.pop(job)
            self.state.remove_running(job)
            for task in gang.tasks:
                self._use(task, -1)
                touched.add(task.node)
            ended += len(gang.tasks)
        for node in sorted(touched):
            self._put_node(node)

    def _use(self, task: RunningTask, sign: int) -> None:
        used = self._used[task.node]
        for resource, amount in task.resources:
            used[resource] = used.get(resource, 0) + sign * amount
        self._tasks_on[task.node] = self._tasks_on.get(task.node, 0) + sign

    def _put_node(self, node: str) -> None:
        size = {"cpu": CPUS * 1000, GPU: GPUS * DEVICE}
        occupants = self._tasks_on.get(node, 0)
        self.state.put_node(node, NodeSpec(size, self._used[node], {}, occupants=occupants))


def _filled(nodes: int, gangs: int) -> tuple[PlannedCluster, int, float]:
    """A cluster after its first plan, the number of tasks placed, and the seconds of the plan: the
    median of several equal clusters."""
    others = [PlannedCluster(nodes, gangs).plan()[1] for _ in range(FIRSTS - 1)]
    site = PlannedCluster(nodes, gangs)
    made, took_s = site.plan()
    return site, site.carry_out(made), statistics.median([*others, took_s])


def run() -> None:
    """Print what was measured."""
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
    site.submit(MORE_PENDING)
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


def _measure_victims(site: PlannedCluster) -> Iterable[tuple[str, str, str]]:
    """Plan for pending gangs of a higher priority only."""
    site.remove_pending()
    site.submit(PREEMPTORS, priority=10)
    made, seconds = site.plan()
    found = sum(isinstance(decision, Evict) for decision in made.decisions)
    each_ms = seconds / PREEMPTORS * 1e3
    what = f"search for victims, found for {found} of {PREEMPTORS} preemptors"
    return [(what, f"{each_ms:.1f} ms", _SEARCHING.verdict(each_ms))]


def profile() -> None:
    """Print the profile of a first plan."""
    site = PlannedCluster(NODES, GANGS)
    profiler = cProfile.Profile()
    profiler.runcall(plan, site.state, site.now)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
