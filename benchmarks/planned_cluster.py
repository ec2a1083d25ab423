"""A planner state on which the decisions of plans are carried out at once."""

import gc
import random
import time
from collections.abc import Iterable, Mapping
from itertools import count

from msgspec.structs import replace

from phalanx.core.events import Placement
from phalanx.core.model import Queue
from phalanx.core.node import DEVICE, GPU
from phalanx.core.time_units import HOUR, SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan, PlannedVictim, Reserve
from phalanx.plan.model import PendingGang, RunningGang, RunningTask
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

GPUS = 8
CPUS = 96
START: Micros = 1_700_000_000 * SECOND


class PlannedCluster:
    def __init__(
        self,
        nodes: int,
        queues: Iterable[Queue],
        labels: Mapping[int, Mapping[str, str]],
        seed: int = 1,
    ) -> None:
        """`labels` are those of some of the nodes, by number."""
        self.random = random.Random(seed)
        self.now = START
        self.state = PlannerState()
        self._labels = {_node(n): of_node for n, of_node in labels.items()}
        self._numbers = count()
        self._pending: dict[str, PendingGang] = {}
        self._running: dict[str, RunningGang] = {}
        self._used: dict[str, dict[str, int]] = {_node(n): {} for n in range(nodes)}
        self._tasks_on: dict[str, int] = {}
        self.state.set_queues({queue.name: queue for queue in queues})
        for node in self._used:
            self._put_node(node)

    def new_job(self) -> tuple[str, Micros]:
        """The id of a job, and the time of its submission."""
        number = next(self._numbers)
        return f"j-{number:07}", self.now + number

    def submit(self, gang: PendingGang) -> None:
        self._pending[gang.job] = gang
        self.state.put_pending(gang)

    @property
    def pending_jobs(self) -> int:
        """The number of pending gangs."""
        return len(self._pending)

    def remove_pending(self) -> None:
        """Remove all pending gangs."""
        for job in self._pending:
            self.state.remove_pending(job)
        self._pending.clear()

    def plan(self) -> tuple[Plan, float]:
        """Make a plan; the plan, and the seconds of CPU time that it took."""
        gc.collect()
        began = time.process_time()
        made = plan(self.state, self.now)
        took_s = time.process_time() - began
        self.state.accept(made)
        return made, took_s

    def carry_out(self, made: Plan) -> int:
        """Carry out a plan, victims stop at once; the number of tasks placed."""
        placed = 0
        for decision in made.decisions:
            if isinstance(decision, Evict):
                for victim in decision.victims:
                    self._evict(victim)
            if isinstance(decision, Evict | Reserve):
                for placement in decision.placements:
                    self._start(placement)
                    placed += len(placement.assignments)
        for node in self._used:
            self._put_node(node)
        return placed

    def _evict(self, victim: PlannedVictim) -> None:
        """Stop tasks, or a whole gang, which is not requeued."""
        gang = self._running.pop(victim.job)
        self.state.remove_running(victim.job)
        tasks = [task for task in gang.tasks if task.index not in victim.tasks]
        for task in gang.tasks:
            if not victim.tasks or task.index in victim.tasks:
                self._use(task, -1)
        if victim.tasks:
            self._run(replace(gang, tasks=tuple(tasks)))

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
        running = RunningGang(*identity, self.now - HOUR, tasks, min_available=gang.need)
        self._run(running)

    def _run(self, gang: RunningGang) -> None:
        self._running[gang.job] = gang
        self.state.put_running(gang)

    def end_some(self, share: float) -> None:
        """End gangs with about this share of the running tasks."""
        wanted = share * sum(len(gang.tasks) for gang in self._running.values())
        touched: set[str] = set()
        ended = 0
        for job in self.random.sample(sorted(self._running), len(self._running)):
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
        labels = self._labels.get(node, {})
        self.state.put_node(node, NodeSpec(size, self._used[node], labels, occupants=occupants))


def _node(number: int) -> str:
    return f"n{number:06}"
