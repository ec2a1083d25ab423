"""The measurements of a replay: wait times, utilisation, slowdown, fairness and lost work."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.core.ledger import gpu_seconds
from phalanx.core.model import Phase
from phalanx.core.node import GPU
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.fairshare.queue_tree import QueueLayout
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.sim.job_history import Step
from phalanx.sim.replay import Replay
from phalanx.sim.traces import Trace, TraceJob

Floats = NDArray[np.float64]

#: The bound of the slowdown: shorter jobs count with this duration, or they would dominate it.
BOUND_S = 10.0
#: The makespan is divided into this many intervals of equal length.
INTERVALS = 240
#: The upper bounds of the size classes of gangs.
_SIZES = (1, 4, 8, 16, 64)


class Distribution(msgspec.Struct, frozen=True):
    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    longest: float


class QueueShare(msgspec.Struct, frozen=True):
    """The GPU-hours of a queue over the makespan."""

    received: float
    deserved: float

    @property
    def fulfilment(self) -> float:
        """The part of its fair share that the queue received, at most 1."""
        return min(1.0, self.received / self.deserved)


class UsageSeries(msgspec.Struct, frozen=True):
    """The mean number of GPUs in each interval."""

    hours: tuple[float, ...]  #: the end of each interval
    used: tuple[float, ...]
    requested: tuple[float, ...]  #: by all running and pending jobs


class ReplayResult(msgspec.Struct, frozen=True):
    """Wait times are in seconds, from the submission of a job to its first start."""

    policy: str
    jobs: int
    done: int
    timed_out: int  #: reached their time limit, also while they were being evicted
    never_fit: int  #: not replayed
    still_pending: int
    makespan_s: float  #: from the first submission to the last end
    gpus: float
    wait: Distribution
    wait_by_size: Mapping[str, Distribution]
    wait_by_queue: Mapping[str, Distribution]
    utilisation: float  #: of all GPU time, from the first submission to the last
    utilisation_to_end: float  #: of all GPU time, to the last end
    slowdown: Distribution  #: (end - submission) / max(duration, 10 s), at least 1
    #: Jain's index over the fulfilment of the queues' fair shares: 1 is fair, 1/n is the minimum
    #: for n queues. Borrowed GPU time does not count.
    fairness: float
    shares: Mapping[str, QueueShare]
    evictions: int
    broken_starts: int  #: reserved starts that a later plan could not keep
    gpu_hours_lost: float
    plans: int
    series: UsageSeries


def measure(policy: str, trace: Trace, replay: Replay) -> ReplayResult:
    history = replay.history
    started = [(job, history.started[job.id]) for job in trace.jobs if job.id in history.started]
    waits = np.array([at - history.start - job.at for job, at in started], float) / SECOND
    done = [
        (job, ended[0])
        for job in trace.jobs
        if (ended := history.ended.get(job.id)) is not None and ended[1] is Phase.DONE
    ]
    first, last = trace.jobs[0].at, trace.jobs[-1].at
    end = (
        max((at for at, _ in history.ended.values()), default=history.start + last) - history.start
    )
    slowdowns = [_slowdown(job, at - history.start) for job, at in done]
    loaded = _edges(history.start, first, last)
    whole = _edges(history.start, first, end)
    used, requested = _means(history.used, whole), _means(history.requested, whole)
    shares = _shares(trace, replay, whole)
    accounts = replay.cluster.accounts.values()
    return ReplayResult(
        policy=policy,
        jobs=len(trace.jobs),
        done=len(done),
        timed_out=sum(phase is Phase.TIMED_OUT for _, phase in history.ended.values()),
        never_fit=len(trace.misfits),
        still_pending=len(replay.cluster.gangs),
        makespan_s=(end - first) / SECOND,
        gpus=trace.gpu / 1000,
        wait=distribution(waits),
        wait_by_size=_grouped(waits, [_size_class(job) for job, _ in started], _SIZE_CLASSES),
        wait_by_queue=_grouped(waits, [job.queue for job, _ in started], history.queues),
        utilisation=_share(_means(history.used, loaded), trace.gpu),
        utilisation_to_end=_share(used, trace.gpu),
        slowdown=distribution(np.array(slowdowns, float)),
        fairness=jain([s.fulfilment for s in shares.values() if s.deserved > 0]),
        shares=shares,
        evictions=sum(account.eviction.count for account in accounts),
        broken_starts=replay.broken_starts,
        gpu_hours_lost=sum(
            gpu_seconds(account.eviction.gpu + account.failure.gpu) for account in accounts
        )
        / 3600,
        plans=replay.plans,
        series=UsageSeries(
            hours=_rounded((whole[1:] - whole[0]) / SECOND / 3600),
            used=_rounded(used / 1000),
            requested=_rounded(requested / 1000),
        ),
    )


def distribution(values: Floats) -> Distribution:
    if not len(values):
        return Distribution(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return Distribution(len(values), float(values.mean()), p50, p95, p99, float(values.max()))


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all values are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _slowdown(job: TraceJob, ended: Micros) -> float:
    return max(1.0, (ended - job.at) / SECOND / max(BOUND_S, job.duration / SECOND))


_SIZE_CLASSES = [
    str(low) if low == high else f"{low}-{high}"
    for low, high in zip((1, *(size + 1 for size in _SIZES)), _SIZES, strict=False)
] + [f"over {_SIZES[-1]}"]


def _size_class(job: TraceJob) -> str:
    return _SIZE_CLASSES[int(np.searchsorted(_SIZES, job.size))]


def _grouped(values: Floats, names: list[str], order: Iterable[str]) -> dict[str, Distribution]:
    """The distribution of the values of each name, in this order, without empty ones."""
    members: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        members.setdefault(name, []).append(number)
    return {name: distribution(values[members[name]]) for name in order if name in members}


# GPUs used and requested over time


def _edges(start: Micros, first: Micros, last: Micros) -> Floats:
    """The edges of the intervals; the whole is at least one second long."""
    return np.linspace(start + first, start + max(last, first + SECOND), INTERVALS + 1)


def _means(steps: Sequence[Step], edges: Floats) -> Floats:
    """The mean of the sum of all steps in each interval."""
    if not steps:
        return np.zeros(len(edges) - 1)
    at = np.array([step[0] for step in steps], float)
    height = np.cumsum([step[2] for step in steps], dtype=float)
    area = np.concatenate(([0.0], np.cumsum(height[:-1] * np.diff(at))))
    # After the last step the sum stays constant.
    integral = np.interp(edges, at, area) + np.maximum(edges - at[-1], 0.0) * height[-1]
    means: Floats = np.diff(integral) / np.diff(edges)
    return means


def _share(used: Floats, capacity: int) -> float:
    return float(used.mean() / capacity) if capacity else 0.0


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in values)


def _shares(trace: Trace, replay: Replay, edges: Floats) -> dict[str, QueueShare]:
    """The GPU-hours that each queue received, and its fair share by the planner's own rule."""
    history = replay.history
    numbers = range(len(history.queues))
    used = [_means([s for s in history.used if s[1] == n], edges) for n in numbers]
    requested = [_means([s for s in history.requested if s[1] == n], edges) for n in numbers]
    table = NodeTable()
    table.put("all", NodeSpec({GPU: trace.gpu}, {}, {}))
    row = table.rows[GPU]
    layout = QueueLayout({queue.name: queue for queue in trace.queues}, table)
    deserved = np.zeros(len(numbers))
    for interval in range(INTERVALS):
        shares = FairShares(layout, table)
        for number, name in enumerate(history.queues):
            amounts = np.zeros(len(table.rows))
            amounts[row] = requested[number][interval]
            shares.request(name, amounts)
        shares.settle()
        deserved += [shares.branches[name].deserved[row] for name in history.queues]
    hours = (edges[1] - edges[0]) / SECOND / 3600 / 1000
    return {
        name: QueueShare(float(used[number].sum() * hours), float(deserved[number] * hours))
        for number, name in enumerate(history.queues)
        if requested[number].any()
    }
