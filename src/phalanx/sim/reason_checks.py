"""Checks the reasons of pending gangs against the cluster, independent of the planner.

Only for gangs with one role, and right after a plan was applied: later the cluster has changed.
"""

from collections.abc import Iterator, Mapping

from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.ids import split_task
from phalanx.core.model import Assignment, Phase
from phalanx.core.node import DEVICE, GPU, Node
from phalanx.core.reasons import (
    Backoff,
    Fragmented,
    Gathering,
    HeldBack,
    NeverFits,
    NotEnough,
    QueueLimit,
    QueueQuota,
    Reason,
    WaitingForVictims,
)
from phalanx.core.spec.job import Role
from phalanx.core.states import PLACED, State
from phalanx.core.time_units import Micros


def wrong_reasons(cluster: Cluster, reasons: Mapping[str, Reason], now: Micros) -> Iterator[str]:
    """A sentence for each pending gang that has no reason, or a wrong one."""
    for job, gang in cluster.gangs.items():
        if gang.job.phase is not Phase.PENDING or gang.job.is_array:
            continue
        reason = reasons.get(job)
        if reason is None:
            yield f"job {job} is pending without a reason"
        elif not _is_true(cluster, gang, reason, now):
            yield f"job {job} is pending with a wrong reason: {reason}"


def _is_true(cluster: Cluster, gang: Gang, reason: Reason, now: Micros) -> bool:
    is_true = False
    match reason:
        case NotEnough(want, fits) if fits >= want:
            is_true = False
        case NotEnough() | Fragmented():
            is_true = _fitting_tasks(cluster, gang) < gang.size
        case Gathering():
            is_true = reason.gathered < reason.want
        case NeverFits():
            is_true = _fitting_tasks_if_empty(cluster, gang.role(0)) < gang.size
        case Backoff():
            is_true = reason.until > now
        case HeldBack():
            is_true = reason.for_job in cluster.gangs and reason.for_job != gang.job.id
        case QueueLimit():
            is_true = _is_at_limit(cluster, gang, reason)
        case QueueQuota():
            is_true = not gang.job.spec.preemptible
        case WaitingForVictims():
            is_true = any(_is_stopping(cluster, task) for task in reason.tasks)
    return is_true


def _is_at_limit(cluster: Cluster, gang: Gang, reason: QueueLimit) -> bool:
    limit = cluster.queues[reason.queue].limit.get(reason.resource)
    used = sum(_usage(other, reason.resource) for other in _gangs_of(cluster, reason.queue))
    requested = gang.size * gang.role(0).resources.get(reason.resource, 0)
    return limit is not None and used + requested > limit


def _fitting_tasks(cluster: Cluster, gang: Gang) -> int:
    """The number of tasks of a gang that fit on free capacity not kept for other gangs."""
    role = gang.role(0)
    kept: dict[str, int] = {}
    for other in cluster.gangs.values():
        if other is not gang:
            for assignment in (*_nominated(other), *_moves_to(other)):
                gpu = other.role(assignment.task).resources.get(GPU, 0)
                kept[assignment.worker] = kept.get(assignment.worker, 0) + gpu
    return sum(
        _fits(node, role, kept.get(name, 0)) for name, node in cluster.nodes.items() if node.is_open
    )


def _fits(node: Node, role: Role, kept: int) -> int:
    amounts = {name: node.free(name) for name in role.resources}
    if GPU in amounts:
        whole = sum(free == DEVICE for free in node.devices) * DEVICE
        amounts[GPU] = min(amounts[GPU], whole) - kept
    return max(0, min(amounts[name] // each for name, each in role.resources.items()))


def _fitting_tasks_if_empty(cluster: Cluster, role: Role) -> int:
    return sum(
        min(node.worker.resources.get(name, 0) // each for name, each in role.resources.items())
        for node in cluster.nodes.values()
        if node.worker.is_open
    )


def _gangs_of(cluster: Cluster, queue: str) -> Iterator[Gang]:
    """The gangs of a queue and of the queues below it."""
    for gang in cluster.gangs.values():
        ancestor: str | None = gang.job.spec.queue
        while ancestor is not None and ancestor != queue:
            ancestor = cluster.queues[ancestor].parent
        if ancestor == queue:
            yield gang


def _usage(gang: Gang, resource: str) -> int:
    tasks = sum(task.state in PLACED for task in gang.tasks) + len(_nominated(gang))
    return tasks * gang.role(0).resources.get(resource, 0)


def _nominated(gang: Gang) -> tuple[Assignment, ...]:
    """The places kept for the gang while its victims stop."""
    pending = gang.job.pending
    return () if pending is None or pending.nomination is None else pending.nomination.assignments


def _moves_to(gang: Gang) -> tuple[Assignment, ...]:
    """The places kept for a gang that is moved, while it stops."""
    stopping = gang.job.stopping
    kept = None if stopping is None else stopping.moves_to
    return () if kept is None else kept.assignments


def _is_stopping(cluster: Cluster, task: str) -> bool:
    job, index = split_task(task)
    gang = cluster.gangs.get(job)
    return gang is not None and gang.tasks[index].state is State.PREEMPTING
