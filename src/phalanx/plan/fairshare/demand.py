"""Who uses and who wants what in a planner state, told to the queues before they are served."""

from collections.abc import Collection, Mapping

import numpy as np

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.groups import groups_of
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import Bucket
from phalanx.plan.placement.amounts import gathered_amounts, minimum_amounts, requested_amounts
from phalanx.plan.state.nodes import Floats, NodeTable
from phalanx.plan.state.planner_state import PlannerState


def divide(
    shares: FairShares,
    state: PlannerState,
    hopeless: Collection[Bucket],
    out: Collection[str],
    stopped: Collection[PendingGang],
) -> None:
    """Settle what every queue deserves. Whoever could not start, may not grow, or gives up now,
    wants nothing."""
    tenants, waiting, table = state.running, state.pending, state.table
    for queue, used in tenants.used.items():
        shares.use(queue, _vector(used, table))
    for wants in (tenants.returning, waiting.wanted):
        for queue, wanted in wants.items():
            shares.want(queue, _vector(wanted, table))
    for group in groups_of(waiting):
        for claim in () if group.missing else group.members:
            shares.want(claim.queue, requested_amounts(claim, table))
    # What is held or promised is not wanted any more but used.
    kept = [(claim, gathered_amounts(claim, table)) for claim in waiting.holders.values()]
    kept += [(claim, minimum_amounts(claim, table)) for claim in waiting.nominated.values()]
    for claim, amounts in kept:
        if claim.job not in out:
            shares.use(claim.queue, amounts)
            shares.want(claim.queue, -amounts)
    for line in hopeless:
        shares.want(line.first.queue, -requested_amounts(line.first, table) * len(line.seats))
    for claim in stopped:
        shares.want(claim.queue, -requested_amounts(claim, table))
    shares.settle()


def _vector(amounts: Mapping[str, int], table: NodeTable) -> Floats:
    vector = np.zeros(len(table.rows))
    for resource, amount in amounts.items():
        vector[table.rows[resource]] = amount
    return vector
