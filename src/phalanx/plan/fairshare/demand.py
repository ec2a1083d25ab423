"""Usage and demand of every queue, from the gangs of a planner state."""

from collections.abc import Collection

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.groups import groups_of
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import Bucket
from phalanx.plan.placement.amounts import (
    amounts_by_row,
    gathered_amounts,
    minimum_amounts,
    requested_amounts,
)
from phalanx.plan.state.planner_state import Moment


def settle_shares(
    shares: FairShares,
    state: Moment,
    never_start: Collection[Bucket],
    excluded: Collection[str],
    not_growing: Collection[PendingGang],
) -> None:
    """Set what every queue uses, requests and deserves.

    Buckets that can never start, gangs that may not grow, and the gathered or nominated places of
    excluded jobs do not count.
    """
    running, pending, table = state.running, state.pending, state.table
    for queue, used in running.used.items():
        shares.use(queue, state.layout.amounts("used", queue, used, table))
    for queue, requested in running.returning.items():
        shares.request(queue, state.layout.amounts("returning", queue, requested, table))
    for queue, requested in pending.requested.items():
        shares.request(queue, state.layout.amounts("requested", queue, requested, table))
    for group in groups_of(pending):
        for gang in () if group.missing else group.members:
            shares.request(gang.queue, requested_amounts(gang, table))
    # Gathered and nominated places are no longer requested, they are used.
    kept = [(gang, gathered_amounts(gang, table)) for gang in pending.gathering.values()]
    kept += [(gang, minimum_amounts(gang, table)) for gang in pending.nominated.values()]
    for gang, amounts in kept:
        if gang.job not in excluded:
            shares.use(gang.queue, amounts)
            shares.request(gang.queue, -amounts)
    for queue, requested in _requested_by(never_start).items():
        shares.request(queue, -amounts_by_row(requested, table))
    for gang in not_growing:
        shares.request(gang.queue, -requested_amounts(gang, table))
    shares.settle()


def _requested_by(buckets: Collection[Bucket]) -> dict[str, dict[str, int]]:
    """By queue and resource: the amounts of all pending tasks in these buckets."""
    requested: dict[str, dict[str, int]] = {}
    for bucket in buckets:
        of_queue = requested.setdefault(bucket.first.queue, {})
        for role in bucket.first.roles:
            tasks = len(role.tasks) * len(bucket.entries)
            for resource, amount in role.request.resources:
                of_queue[resource] = of_queue.get(resource, 0) + amount * tasks
    return requested
