"""The gate of `min_resources`: a gang is not tried before so much is free in the cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phalanx.core.reasons import BelowMinResources
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import gathered_amounts, minimum_amounts

if TYPE_CHECKING:
    from phalanx.plan.planning_pass import PlanningPass


def closed_gate(work: "PlanningPass", gangs: Sequence[PendingGang]) -> BelowMinResources | None:
    """The resource of which too little is free to try these gangs; None if they can be tried.

    A gang for which capacity is kept has passed its gate.
    """
    for gang in gangs:
        if gang.gate and gang.nomination is None:
            reason = _closed(work, gang)
            if reason is not None:
                return reason
    return None


def _closed(work: "PlanningPass", gang: PendingGang) -> BelowMinResources | None:
    table = work.table
    free = np.maximum(work.capacity.present.free, 0).sum(axis=1, where=table.open)
    gathered = gathered_amounts(gang, table)
    minimum = minimum_amounts(gang, table) + gathered
    for resource, amount in gang.gate:
        row = table.rows.get(resource)
        # What the gang itself needs must be free anyway, by an eviction or without one.
        if row is not None and minimum[row] >= amount:
            continue
        present = 0 if row is None else int(free[row] + gathered[row])
        if present < amount:
            return BelowMinResources(resource, amount, present)
    return None
