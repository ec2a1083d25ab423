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
        shares.use(queue, amounts_by_row(used, table))
    for requests in (running.returning, pending.requested):
        for queue, requested in requests.items():
            shares.request(queue, amounts_by_row(requested, table))
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
    for bucket in never_start:
        amounts = requested_amounts(bucket.first, table) * len(bucket.entries)
        shares.request(bucket.first.queue, -amounts)
    for gang in not_growing:
        shares.request(gang.queue, -requested_amounts(gang, table))
    shares.settle()
