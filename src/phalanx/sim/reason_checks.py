"""Whether the reasons for which gangs wait are true, judged from the cluster without the planner.

For gangs of one role. Judged right after a plan was carried out: from then on there is only less.
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
    HeldBack,
    NeverFits,
    NotEnough,
    QueueLimit,
    Reason,
    WaitingForVictims,
)
from phalanx.core.spec.job import Micros, Role
from phalanx.core.states import PLACED, State


def untruths(cluster: Cluster, reasons: Mapping[str, Reason], now: Micros) -> Iterator[str]:
    """A sentence for each gang that waits without a reason, or for one that is not true."""
    for job, gang in cluster.gangs.items():
        if gang.job.phase is not Phase.PENDING:
            continue
        reason = reasons.get(job)
        if reason is None:
            yield f"job {job} waits for no reason"
        elif not _is_true(cluster, gang, reason, now):
            yield f"job {job} waits because {reason}, which is not so"


def _is_true(cluster: Cluster, gang: Gang, reason: Reason, now: Micros) -> bool:
    is_so = False
    match reason:
        case NotEnough() | Fragmented():
            is_so = _room(cluster, gang) < gang.size
        case NeverFits():
            is_so = _room_if_empty(cluster, gang.role(0)) < gang.size
        case Backoff():
            is_so = reason.until > now
        case HeldBack():
            is_so = reason.for_job in cluster.gangs and reason.for_job != gang.job.id
        case QueueLimit():
            is_so = _is_at_limit(cluster, gang, reason)
        case WaitingForVictims():
            is_so = any(_is_leaving(cluster, task) for task in reason.tasks)
    return is_so


def _is_at_limit(cluster: Cluster, gang: Gang, reason: QueueLimit) -> bool:
    limit = cluster.queues[reason.queue].limit.get(reason.resource)
    used = sum(_uses(each, reason.resource) for each in _below(cluster, reason.queue))
    wants = gang.size * gang.role(0).resources.get(reason.resource, 0)
    return limit is not None and used + wants > limit


def _room(cluster: Cluster, gang: Gang) -> int:
    """How many of its tasks fit now, on what is free and not kept for others."""
    role = gang.role(0)
    kept: dict[str, int] = {}
    for other in cluster.gangs.values():
        if other is not gang:
            for assignment in _nominated(other):
                gpu = other.role(assignment.task).resources.get(GPU, 0)
                kept[assignment.worker] = kept.get(assignment.worker, 0) + gpu
    return sum(
        _fits(node, role, kept.get(name, 0)) for name, node in cluster.nodes.items() if node.is_open
    )


def _fits(node: Node, role: Role, kept: int) -> int:
    amounts = {name: node.free(name) for name in role.resources}
    if GPU in amounts:
        whole = sum(left == DEVICE for left in node.devices) * DEVICE
        amounts[GPU] = min(amounts[GPU], whole) - kept
    return max(0, min(amounts[name] // each for name, each in role.resources.items()))


def _room_if_empty(cluster: Cluster, role: Role) -> int:
    return sum(
        min(node.worker.resources.get(name, 0) // each for name, each in role.resources.items())
        for node in cluster.nodes.values()
        if node.worker.is_open
    )


def _below(cluster: Cluster, queue: str) -> Iterator[Gang]:
    """The gangs of a queue and of those below it."""
    for gang in cluster.gangs.values():
        above: str | None = gang.job.spec.queue
        while above is not None and above != queue:
            above = cluster.queues[above].parent
        if above == queue:
            yield gang


def _uses(gang: Gang, resource: str) -> int:
    tasks = sum(task.state in PLACED for task in gang.tasks) + len(_nominated(gang))
    return tasks * gang.role(0).resources.get(resource, 0)


def _nominated(gang: Gang) -> tuple[Assignment, ...]:
    """The places that are kept for the gang while its victims stop."""
    pending = gang.job.pending
    return () if pending is None or pending.nomination is None else pending.nomination.assignments


def _is_leaving(cluster: Cluster, task: str) -> bool:
    job, index = split_task(task)
    gang = cluster.gangs.get(job)
    return gang is not None and gang.tasks[index].state is State.PREEMPTING
