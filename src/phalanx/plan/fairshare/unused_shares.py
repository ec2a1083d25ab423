"""Unused shares, remembered with a half-life: a queue that used less than its share deserves more
for a while."""

from collections.abc import Mapping

import msgspec
import numpy as np

from phalanx.core.time_units import Micros
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.state.nodes import Floats


class UnusedShares(msgspec.Struct, frozen=True):
    """By queue and resource: the part of its share that a queue did not use lately.

    An average in which the present has the weight that the half-life gives it. The share is what
    the queue would deserve if all queues requested everything. Use above the share counts against
    it.
    """

    at: Micros | None = None  #: None: nothing is known yet
    by_queue: Mapping[str, Mapping[str, float]] = {}

    def after(self, shares: FairShares, now: Micros, half_life: Micros) -> "UnusedShares":
        """Up to a later time, since which the queues have used what they use now."""
        passed = 0 if self.at is None else max(0, now - self.at)
        weight = 1.0 - 0.5 ** (passed / half_life)
        rows, full = list(shares.table.rows), shares.if_all_request_everything()
        by_queue = {}
        for name, branch in shares.branches.items():
            before = self.of(name, shares)
            unused = full.branches[name].deserved - branch.used
            average = np.maximum(0.0, before + weight * (unused - before))
            by_queue[name] = {
                rows[row]: float(average[row])
                for row in np.flatnonzero((average > 0) & shares.shared).tolist()
            }
        return UnusedShares(now, by_queue)

    def of(self, queue: str, shares: FairShares) -> Floats:
        """The unused share of a queue, by row."""
        amounts = np.zeros(len(shares.capacity))
        for resource, amount in self.by_queue.get(queue, {}).items():
            if resource in shares.table.rows:
                amounts[shares.table.rows[resource]] = amount
        return amounts
