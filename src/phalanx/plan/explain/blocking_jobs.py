"""The running jobs without a time limit that a gang waits for which has been pending for long.

No start can be reserved for such a gang: it is not known when what it needs becomes free.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np

from phalanx.core.queues import at_or_above
from phalanx.core.reasons import QueueLimit, QueueQuota
from phalanx.plan.explain.whatif import Forecast
from phalanx.plan.first_gangs import is_overdue
from phalanx.plan.future_capacity import node_mask
from phalanx.plan.groups import group_of
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import is_starving
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial, place_all
from phalanx.plan.state.nodes import EPSILON, Bools, Floats
from phalanx.plan.state.planner_state import Moment
from phalanx.plan.state.running import Occupancy

_Gangs = tuple[PendingGang, ...]


class BlockingJobs(msgspec.Struct, frozen=True):
    jobs: tuple[str, ...]  #: those that use most; the gang could start if all of them ended
    #: What they use: nodes that are kept for the gang, or else a limit or a quota.
    nodes: tuple[str, ...] = ()
    bound: QueueLimit | QueueQuota | None = None


def blocking_jobs(state: Moment, job: str, found: Forecast) -> BlockingJobs | None:
    """The jobs that block a starving or overdue gang; None if its start depends on others too.

    Jobs with a time limit do not count: the gang could start once they have ended.
    """
    gang = state.pending.gangs.get(job)
    if gang is None:
        return None
    gangs, missing = group_of(gang, state.pending)
    starves = all(is_starving(state.policy, each, state.now) for each in gangs)
    if missing or not (starves or is_overdue(state, gangs)):
        return None
    if isinstance(found.reason, QueueLimit | QueueQuota):
        return _using_bound(state, gangs, found.reason)
    start = found.reserved_start
    if start is None or start.at is not None:
        return None
    return _using_nodes(state, gangs, start.nodes)


def _using_nodes(state: Moment, gangs: _Gangs, names: tuple[str, ...]) -> BlockingJobs | None:
    """The jobs without which the gangs fit on the nodes that are kept for them, once all tasks with
    a time limit there have ended."""
    nodes = node_mask(state.table, names)
    need: Floats = np.sum([minimum_amounts(gang, state.table) for gang in gangs], axis=0)
    lasting = [
        occupancy
        for occupancy in state.running.by_job.values()
        if state.running.is_lasting(occupancy) and nodes[occupancy.nodes].any()
    ]
    rows = (need > 0) & state.layout.shared

    def part(occupancy: Occupancy) -> float:
        """The largest part that a job uses there of what the gangs need of a resource."""
        there = occupancy.amounts[nodes[occupancy.nodes]].sum(axis=0)
        return float((there[rows] / need[rows]).max(initial=0.0))

    lasting.sort(key=lambda occupancy: (-part(occupancy), occupancy.gang.job))
    counts = range(len(lasting) + 1)
    enough = bisect_left(
        counts, 1, key=lambda count: int(_fits_beside(state, gangs, nodes, lasting[count:]))
    )
    if not 0 < enough <= len(lasting):
        return None
    return BlockingJobs(tuple(each.gang.job for each in lasting[:enough]), tuple(sorted(names)))


def _fits_beside(state: Moment, gangs: _Gangs, nodes: Bools, running: Sequence[Occupancy]) -> bool:
    """Whether gangs fit on nodes if only these gangs run there."""
    capacity = state.empty.fork()
    for occupancy in running:
        capacity.vacate(occupancy.occupants, -1)
    return place_all([PlacementTrial(gang, (capacity,), nodes) for gang in gangs]) is not None


def _using_bound(
    state: Moment, gangs: _Gangs, bound: QueueLimit | QueueQuota
) -> BlockingJobs | None:
    """The jobs without which the gangs stay within a limit, or a quota for jobs that are not
    preemptible, once all jobs with a time limit have ended."""
    is_quota = isinstance(bound, QueueQuota)
    queues = {queue.name: queue for queue in state.layout.queues}
    below = {
        name for name in queues if any(q.name == bound.queue for q in at_or_above(queues, name))
    }
    row = state.table.rows[bound.resource]
    allowed = float(queues[bound.queue].limit.get(bound.resource, 0))
    if is_quota:
        allowed = float(state.layout.quota_bound(bound.queue)[row])
    counted = [g for g in gangs if g.queue in below and not (is_quota and g.preemptible)]
    need = sum(float(minimum_amounts(gang, state.table)[row]) for gang in counted)
    lasting = [
        occupancy
        for occupancy in state.running.by_job.values()
        if state.running.is_lasting(occupancy)
        and occupancy.gang.queue in below
        and not (is_quota and occupancy.gang.preemptible)
    ]
    lasting.sort(key=lambda occupancy: (-occupancy.total[row], occupancy.gang.job))
    excess = need + sum(float(occupancy.total[row]) for occupancy in lasting) - allowed
    jobs: list[str] = []
    for occupancy in lasting:
        if excess <= EPSILON or not occupancy.total[row]:
            break
        jobs.append(occupancy.gang.job)
        excess -= float(occupancy.total[row])
    return BlockingJobs(tuple(jobs), bound=bound) if jobs and excess <= EPSILON else None
