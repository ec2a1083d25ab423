"""A busy day of a cluster from a seed: queues, priorities, evictions and failing workers.

The core's invariants and the reasons of pending jobs are checked during the day. After the last
submission and the last fault, every job must end.
"""

from collections.abc import Callable
from random import Random

from phalanx.core import events
from phalanx.core.cluster import Cluster
from phalanx.core.invariants import check
from phalanx.core.model import Phase, Queue
from phalanx.core.node import DEVICE, GPU
from phalanx.core.states import State
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros
from phalanx.plan.model import PlannerPolicy
from phalanx.sim.planners import ProductionPlanner
from phalanx.sim.reason_checks import wrong_reasons
from phalanx.sim.replay import START, Replay, ReplaySettings, register
from phalanx.sim.traces import Trace, TraceJob, TraceNode, make_trace

_GPUS_PER_NODE = 8
_POLICY = PlannerPolicy()
#: The interval of checks.
_CHECK_EVERY: Micros = 10 * MINUTE
#: The mean interval of faults and user actions.
_FAULT_EVERY: Micros = 5 * MINUTE


class BusyDay:
    def __init__(self, seed: int, nodes: int, hours: float) -> None:
        self._random = Random(seed)  # noqa: S311
        self._until = START + round(hours * HOUR)
        self.trace = _trace(self._random, nodes, hours)
        cluster = Cluster()
        planner = ProductionPlanner(cluster, _POLICY)
        self.replay = Replay(self.trace, cluster, planner, ReplaySettings(checkpoints=True))
        self._fault_at: Micros = START
        self._check_at: Micros = START

    def run(self) -> None:
        """Simulate until every job has ended. Raises AssertionError on the first violation."""
        while self.replay.step():
            if self.replay.now >= self._check_at:
                self._check()
            if self.replay.now < self._until:
                while self._fault_at <= self.replay.now:
                    self._inject_fault()
            elif self._fault_at < self._until:
                self._fault_at = self._until
                self._uncordon_all()
        self._check()
        if self.replay.rejected:
            raise AssertionError(f"bug: decisions were rejected: {dict(self.replay.rejected)}")
        self._check_moves()
        if self.replay.cluster.gangs:
            raise AssertionError(f"bug: jobs never end: {sorted(self.replay.cluster.gangs)}")

    def _check(self) -> None:
        check(self.replay.cluster)
        if self.replay.planned_at != self.replay.now:
            return
        self._check_at = self.replay.now + _CHECK_EVERY
        wrong = list(wrong_reasons(self.replay.cluster, self.replay.reasons, self.replay.now))
        if wrong:
            raise AssertionError("bug: " + "; ".join(wrong))

    def _check_moves(self) -> None:
        """No gang is moved back and forth: at most one move in its cooldown."""
        last: dict[str, Micros] = {}
        for at, job in self.replay.moves:
            if job in last and at - last[job] < _POLICY.move_cooldown:
                raise AssertionError(f"bug: job {job} was moved twice in its cooldown")
            last[job] = at

    # Faults and user actions

    def _inject_fault(self) -> None:
        self._fault_at += round(self._random.expovariate(1 / _FAULT_EVERY))
        actions: list[Callable[[], None]] = [
            self._lose_worker,
            self._fail_task,
            self._fail_task,
            self._change_priority,
            self._cancel,
            self._cordon,
        ]
        self._random.choice(actions)()

    def _lose_worker(self) -> None:
        node = self._random.choice(self.trace.nodes)
        self.replay.apply(events.WorkerLost(node.name))
        returns_at = self.replay.now + round(self._random.uniform(1, 30) * MINUTE)
        self.replay.schedule(returns_at, register(node.name, node.resources))

    def _fail_task(self) -> None:
        job = self._random_job(Phase.RUNNING)
        if job is not None:
            tasks = self.replay.cluster.gangs[job].tasks
            running = [task for task in tasks if task.state is State.RUNNING]
            task = self._random.choice(running)
            self.replay.apply(events.Exited(task.id, task.epoch, code=1))

    def _change_priority(self) -> None:
        job = self._random_job(Phase.PENDING)
        if job is not None:
            self.replay.apply(events.PriorityChanged(job, self._random.choice((0, 5, 20))))

    def _cancel(self) -> None:
        job = self._random_job(self._random.choice((Phase.PENDING, Phase.RUNNING)))
        if job is not None:
            self.replay.apply(events.CancelRequested(job))

    def _cordon(self) -> None:
        node = self._random.choice(self.trace.nodes).name
        self.replay.apply(events.CordonChanged(node, "maintenance"))
        later = self.replay.now + round(self._random.uniform(1, 60) * MINUTE)
        self.replay.schedule(later, events.CordonChanged(node, None))

    def _random_job(self, phase: Phase) -> str | None:
        gangs = self.replay.cluster.gangs
        jobs = [job for job, gang in gangs.items() if gang.job.phase is phase]
        return self._random.choice(jobs) if jobs else None

    def _uncordon_all(self) -> None:
        """Uncordon the workers that were cordoned for failing too often, as an operator would."""
        for node in self.trace.nodes:
            self.replay.apply(events.CordonChanged(node.name, None))


def _trace(random: Random, nodes: int, hours: float) -> Trace:
    """A trace with 10 % more work than the cluster can do, in gangs of 1 to 64 tasks."""
    gpus = nodes * _GPUS_PER_NODE
    queues = [
        Queue("research", weight=3),
        Queue("vision", parent="research", consolidation=True),
        Queue("language", parent="research", weight=2, quota={GPU: gpus * DEVICE // 4}),
        Queue("product", weight=2, quota={GPU: gpus * DEVICE // 4}),
        Queue("interns", limit={GPU: gpus * DEVICE // 8}, consolidation=True),
    ]
    jobs: list[TraceJob] = []
    gpu_seconds = 1.1 * gpus * hours * 3600
    while gpu_seconds > 0:
        each = random.choice((1, 1, 2, 4, 8))
        size = min(random.choice((1, 1, 1, 2, 4, 8, 16, 64)), max(1, gpus // (8 * each)))
        duration = min(random.lognormvariate(7.0, 1.3), 4 * 3600.0)
        at = round(random.uniform(0, hours * 3600)) * SECOND
        name = f"j-{len(jobs)}"
        queue = random.choice(("research", "vision", "language", "product", "interns"))
        priority = random.choice((0, 0, 0, 10, 20))
        request = {GPU: each * DEVICE}
        jobs.append(TraceJob(name, at, round(duration) * SECOND, queue, size, request, priority))
        gpu_seconds -= size * each * duration
    trace_nodes = [TraceNode(f"n-{n:04}", {GPU: _GPUS_PER_NODE * DEVICE}) for n in range(nodes)]
    return make_trace(jobs, trace_nodes, queues)
