"""A day of a busy cluster from a seed: queues, priorities, evictions, and machines that fail.

The invariants hold all the time, and whoever waits does so for a reason that is true. When nothing
new comes and nothing fails any more, every job ends.
"""

from collections.abc import Callable
from random import Random

from phalanx.core import events
from phalanx.core.cluster import Cluster
from phalanx.core.invariants import check
from phalanx.core.model import Phase, Queue
from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec.job import HOUR, MINUTE, SECOND, Micros
from phalanx.core.states import State
from phalanx.plan.model import PlannerPolicy
from phalanx.sim.planners import Production
from phalanx.sim.reason_checks import untruths
from phalanx.sim.replay import START, Replay, register
from phalanx.sim.traces import Trace, TraceJob, TraceNode, make_trace

_GPUS = 8
#: How often the whole cluster is looked at.
_LOOK: Micros = 10 * MINUTE
#: How often something goes wrong, on average.
_TROUBLE: Micros = 5 * MINUTE


class Day:
    def __init__(self, seed: int, nodes: int, hours: float) -> None:
        self._random = Random(seed)  # noqa: S311
        self._until = START + round(hours * HOUR)
        self.trace = _trace(self._random, nodes, hours)
        cluster = Cluster()
        self.replay = Replay(self.trace, cluster, Production(cluster, PlannerPolicy()))
        self._trouble_at: Micros = START
        self._look_at: Micros = START

    def live(self) -> None:
        """To the end. Raises AssertionError on the first thing that should not be."""
        while self.replay.step():
            if self.replay.now >= self._look_at:
                self._look()
            if self.replay.now < self._until:
                while self._trouble_at <= self.replay.now:
                    self._befall()
            elif self._trouble_at < self._until:
                self._trouble_at = self._until
                self._repair()
        self._look()
        if self.replay.rejected:
            raise AssertionError(f"bug: decisions did not hold: {dict(self.replay.rejected)}")
        if self.replay.cluster.gangs:
            raise AssertionError(f"bug: these never end: {sorted(self.replay.cluster.gangs)}")

    def _look(self) -> None:
        check(self.replay.cluster)
        if self.replay.planned_at != self.replay.now:
            return
        self._look_at = self.replay.now + _LOOK
        found = list(untruths(self.replay.cluster, self.replay.reasons, self.replay.now))
        if found:
            raise AssertionError("bug: " + "; ".join(found))

    # What goes wrong

    def _befall(self) -> None:
        self._trouble_at += round(self._random.expovariate(1 / _TROUBLE))
        troubles: list[Callable[[], None]] = [
            self._lose_worker,
            self._fail_task,
            self._fail_task,
            self._change_priority,
            self._cancel,
            self._cordon,
        ]
        self._random.choice(troubles)()

    def _lose_worker(self) -> None:
        node = self._random.choice(self.trace.nodes)
        self.replay.apply(events.WorkerLost(node.name))
        back = self.replay.now + round(self._random.uniform(1, 30) * MINUTE)
        self.replay.happens_at(back, register(node.name, node.resources))

    def _fail_task(self) -> None:
        job = self._one_that_is(Phase.RUNNING)
        if job is not None:
            tasks = self.replay.cluster.gangs[job].tasks
            running = [task for task in tasks if task.state is State.RUNNING]
            task = self._random.choice(running)
            self.replay.apply(events.Exited(task.id, task.epoch, code=1))

    def _change_priority(self) -> None:
        job = self._one_that_is(Phase.PENDING)
        if job is not None:
            self.replay.apply(events.PriorityChanged(job, self._random.choice((0, 5, 20))))

    def _cancel(self) -> None:
        job = self._one_that_is(self._random.choice((Phase.PENDING, Phase.RUNNING)))
        if job is not None:
            self.replay.apply(events.CancelRequested(job))

    def _cordon(self) -> None:
        node = self._random.choice(self.trace.nodes).name
        self.replay.apply(events.CordonChanged(node, "an operator looks at it"))
        later = self.replay.now + round(self._random.uniform(1, 60) * MINUTE)
        self.replay.happens_at(later, events.CordonChanged(node, None))

    def _one_that_is(self, phase: Phase) -> str | None:
        gangs = self.replay.cluster.gangs
        found = [job for job, gang in gangs.items() if gang.job.phase is phase]
        return self._random.choice(found) if found else None

    def _repair(self) -> None:
        """An operator looks at machines that are cordoned for having failed too often."""
        for node in self.trace.nodes:
            self.replay.apply(events.CordonChanged(node.name, None))


def _trace(random: Random, nodes: int, hours: float) -> Trace:
    """More than the cluster can do while it lasts, in gangs of all sizes."""
    gpus = nodes * _GPUS
    queues = [
        Queue("research", weight=3),
        Queue("vision", parent="research"),
        Queue("language", parent="research", weight=2, quota={GPU: gpus * DEVICE // 4}),
        Queue("product", weight=2, quota={GPU: gpus * DEVICE // 4}),
        Queue("interns", limit={GPU: gpus * DEVICE // 8}),
    ]
    jobs: list[TraceJob] = []
    wanted = 1.1 * gpus * hours * 3600
    while wanted > 0:
        each = random.choice((1, 1, 2, 4, 8))
        size = min(random.choice((1, 1, 1, 2, 4, 8, 16, 64)), max(1, gpus // (8 * each)))
        duration = min(random.lognormvariate(7.0, 1.3), 4 * 3600.0)
        at = round(random.uniform(0, hours * 3600)) * SECOND
        name = f"j-{len(jobs)}"
        queue = random.choice(("research", "vision", "language", "product", "interns"))
        priority = random.choice((0, 0, 0, 10, 20))
        ask = {GPU: each * DEVICE}
        jobs.append(TraceJob(name, at, round(duration) * SECOND, queue, size, ask, priority))
        wanted -= size * each * duration
    machines = [TraceNode(f"n-{n:04}", {GPU: _GPUS * DEVICE}) for n in range(nodes)]
    return make_trace(jobs, machines, queues)
