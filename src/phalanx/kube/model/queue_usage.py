"""What each queue uses and deserves now, and how many gangs run and are pending in it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.core.time_units import Micros
from phalanx.kube.gangs.gang import MemberState
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.plan.cycle import settled_shares
from phalanx.plan.state.nodes import SLOTS, WHOLE

#: Queues share these in numbers that people do not look for.
_HIDDEN = (SLOTS, WHOLE)


class ClusterQueueUsage(NamedTuple):
    """Amounts are those of the queue and the queues below it, by the planner's resources."""

    used: dict[str, int]
    deserved: dict[str, int]  #: its fair share
    running: int  #: gangs with bound pods
    pending: int  #: gangs with pending pods


def total_usage(parts: Iterable[ClusterQueueUsage]) -> ClusterQueueUsage:
    """The sum of what several schedulers count."""
    used: Counter[str] = Counter()
    deserved: Counter[str] = Counter()
    running = pending = 0
    for part in parts:
        used.update(part.used)
        deserved.update(part.deserved)
        running += part.running
        pending += part.pending
    return ClusterQueueUsage(dict(used), dict(deserved), running, pending)


def queue_usage(model: ClusterModel, now: Micros) -> dict[str, ClusterQueueUsage]:
    """By name: all queues, and those that gangs name although they cannot be used. Gangs of other
    schedulers do not count."""
    running: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for gang in model.gangs.gangs.values():
        if any(map(model.pods.is_own, gang.pods())):
            states = {member.state for member in gang.members.values()}
            running[gang.queue] += MemberState.BOUND in states
            pending[gang.queue] += MemberState.PENDING in states
    shares = settled_shares(model.state.at(now))
    visible = [
        (row, resource) for row, resource in enumerate(shares.table.rows) if resource not in _HIDDEN
    ]
    usage = {}
    for name in {*model.queues, *shares.branches, *running, *pending}:
        branch = shares.branches.get(name)
        used, deserved = (
            ({}, {})
            if branch is None
            else (
                {resource: int(row_of[row]) for row, resource in visible if row_of[row] >= 1}
                for row_of in (branch.used, branch.deserved)
            )
        )
        usage[name] = ClusterQueueUsage(used, deserved, running[name], pending[name])
    return usage


def foreign_amounts(model: ClusterModel) -> defaultdict[str, Counter[str]]:
    """By queue: what members of gangs request that other schedulers have bound."""
    amounts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for gang in model.gangs.gangs.values():
        for member in gang.of(MemberState.BOUND, MemberState.LEAVING):
            if not model.pods.is_own(member.pod):
                amounts[gang.queue].update(dict(member.request.resources))
    return amounts
