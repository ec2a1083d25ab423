"""What a replay has shown, in numbers: waiting, use, slowdown, fairness, and what was lost."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.core.ledger import gpu_seconds
from phalanx.core.model import Phase
from phalanx.core.node import GPU
from phalanx.core.spec.job import SECOND, Micros
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.sim.job_history import Step
from phalanx.sim.replay import Replay
from phalanx.sim.traces import Trace, TraceJob

Floats = NDArray[np.float64]

#: A slowdown is reckoned with at least this duration, or jobs of a second would rule it.
BOUND_S = 10.0
#: The span of a trace is looked at in so many equal parts.
PARTS = 240
#: Gangs are told apart by size up to these.
_SIZES = (1, 4, 8, 16, 64)


class Spread(msgspec.Struct, frozen=True):
    """How values are spread."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


class QueueShare(msgspec.Struct, frozen=True):
    """A queue's GPU hours, from the first submission to the last end."""

    received: float
    deserved: float

    @property
    def part(self) -> float:
        """How much of what it deserved it received."""
        return min(1.0, self.received / self.deserved)


class Series(msgspec.Struct, frozen=True):
    """By part of the whole span, in GPUs on average."""

    hours: tuple[float, ...]  #: where each part ends
    used: tuple[float, ...]
    wanted: tuple[float, ...]  #: by all that ran or waited


class Result(msgspec.Struct, frozen=True):
    """All times are in seconds; waiting is from the submission to the first start."""

    policy: str
    jobs: int
    done: int
    never_fit: int  #: not replayed
    left_waiting: int
    span_s: float  #: from the first submission to the last end
    gpus: float
    waiting: Spread
    waiting_by_size: Mapping[str, Spread]
    waiting_by_queue: Mapping[str, Spread]
    #: Of all GPU time, from the first submission to the last; and to the last end.
    utilisation: float
    utilisation_to_end: float
    slowdown: Spread  #: (end - submission) / duration, at least 1, with durations of at least 10 s
    #: Jain's index over queues of how much they received of the GPU time that they deserved: 1 is
    #: fair, 1/n as unfair as can be. Whoever used what was idle received no more than all of it.
    fairness: float
    shares: Mapping[str, QueueShare]
    evictions: int
    gpu_hours_lost: float
    plans: int
    series: Series


def measured(policy: str, trace: Trace, replay: Replay) -> Result:
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
    loaded = _edges(history.start, first, last)
    whole = _edges(history.start, first, end)
    used, wanted = _means(history.used, whole), _means(history.requested, whole)
    shares = _shares(trace, replay, whole)
    accounts = replay.cluster.accounts.values()
    return Result(
        policy=policy,
        jobs=len(trace.jobs),
        done=len(done),
        never_fit=len(trace.misfits),
        left_waiting=len(replay.cluster.gangs),
        span_s=(end - first) / SECOND,
        gpus=trace.gpu / 1000,
        waiting=spread(waits),
        waiting_by_size=_grouped(waits, [_size_class(job) for job, _ in started], _CLASSES),
        waiting_by_queue=_grouped(waits, [job.queue for job, _ in started], history.queues),
        utilisation=_share(_means(history.used, loaded), trace.gpu),
        utilisation_to_end=_share(used, trace.gpu),
        slowdown=spread(np.array([_slowdown(job, at - history.start) for job, at in done], float)),
        fairness=jain([s.part for s in shares.values() if s.deserved > 0]),
        shares=shares,
        evictions=sum(account.eviction.count for account in accounts),
        gpu_hours_lost=sum(
            gpu_seconds(account.eviction.gpu + account.failure.gpu) for account in accounts
        )
        / 3600,
        plans=replay.plans,
        series=Series(
            hours=_rounded((whole[1:] - whole[0]) / SECOND / 3600),
            used=_rounded(used / 1000),
            wanted=_rounded(wanted / 1000),
        ),
    )


def spread(values: Floats) -> Spread:
    if not len(values):
        return Spread(0, 0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return Spread(len(values), float(values.mean()), p50, p95, p99)


def jain(values: Sequence[float]) -> float:
    """1 if all are equal; 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _slowdown(job: TraceJob, ended: Micros) -> float:
    return max(1.0, (ended - job.at) / SECOND / max(BOUND_S, job.duration / SECOND))


_CLASSES = [
    str(low) if low == high else f"{low}-{high}"
    for low, high in zip((1, *(size + 1 for size in _SIZES)), _SIZES, strict=False)
] + [f"over {_SIZES[-1]}"]


def _size_class(job: TraceJob) -> str:
    return _CLASSES[int(np.searchsorted(_SIZES, job.size))]


def _grouped(values: Floats, names: list[str], order: Iterable[str]) -> dict[str, Spread]:
    """By name, in this order, as far as there is anything to say."""
    members: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        members.setdefault(name, []).append(number)
    return {name: spread(values[members[name]]) for name in order if name in members}


# What was used and wanted over time


def _edges(start: Micros, first: Micros, last: Micros) -> Floats:
    """A second at least, so that there is something to divide by."""
    return np.linspace(start + first, start + max(last, first + SECOND), PARTS + 1)


def _means(steps: Sequence[Step], edges: Floats) -> Floats:
    """The mean between each two edges of what the steps add up to."""
    if not steps:
        return np.zeros(len(edges) - 1)
    at = np.array([step[0] for step in steps], float)
    height = np.cumsum([step[2] for step in steps], dtype=float)
    area = np.concatenate(([0.0], np.cumsum(height[:-1] * np.diff(at))))
    # Beyond the last step the height stays what it is.
    below = np.interp(edges, at, area) + np.maximum(edges - at[-1], 0.0) * height[-1]
    means: Floats = np.diff(below) / np.diff(edges)
    return means


def _share(used: Floats, capacity: int) -> float:
    return float(used.mean() / capacity) if capacity else 0.0


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in values)


def _shares(trace: Trace, replay: Replay, edges: Floats) -> dict[str, QueueShare]:
    """What queues got and what the planner's own rule would have given them, part by part."""
    history = replay.history
    numbers = range(len(history.queues))
    used = [_means([s for s in history.used if s[1] == n], edges) for n in numbers]
    wanted = [_means([s for s in history.requested if s[1] == n], edges) for n in numbers]
    table = NodeTable()
    table.put("all", NodeSpec({GPU: trace.gpu}, {}, {}))
    row = table.rows[GPU]
    queues = {queue.name: queue for queue in trace.queues}
    deserved = np.zeros(len(numbers))
    for part in range(PARTS):
        shares = FairShares(queues, table)
        for number, name in enumerate(history.queues):
            amounts = np.zeros(len(table.rows))
            amounts[row] = wanted[number][part]
            shares.request(name, amounts)
        shares.settle()
        deserved += [shares.branches[name].deserved[row] for name in history.queues]
    hours = (edges[1] - edges[0]) / SECOND / 3600 / 1000
    return {
        name: QueueShare(float(used[number].sum() * hours), float(deserved[number] * hours))
        for number, name in enumerate(history.queues)
        if wanted[number].any()
    }
