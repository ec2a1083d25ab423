"""What a queue owes to a gang of its own that has waited too long: a part of its share.

Small gangs that stand behind it could otherwise use that part again and again, and the queue would
never have the whole of it to spare.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phalanx.core.spec.job import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.nodes import Floats
from phalanx.plan.state.running import NEVER, RunningGangs


class _Debt(NamedTuple):
    need: Floats
    head: ReservedStart


class StarvationReserve:
    def __init__(self, shares: FairShares, tenants: RunningGangs, now: Micros) -> None:
        self._shares = shares
        self._tenants = tenants
        self._now = now
        #: By queue, to the first that waits in it.
        self._debts: dict[str, _Debt] = {}

    def keep(self, claim: PendingGang, at: Micros | None) -> None:
        """For a gang that its queue could serve from its share, but for what will have ended.

        Alone in wanting anything, a queue has no share to keep.
        """
        if claim.queue in self._debts or not self._shares.is_contended:
            return
        need = minimum_amounts(claim, self._shares.table)
        if self._shares.within_share(self._shares.branches[claim.queue], need):
            return
        if self._shares.could_serve(claim.queue, need + self._endless(claim.queue) * (need > 0)):
            self._debts[claim.queue] = _Debt(need, ReservedStart(claim.job, (), at))

    def _endless(self, queue: str) -> Floats:
        """What the queue uses and nobody knows until when."""
        tenants = self._tenants
        used = np.zeros(len(self._shares.capacity))
        for job, occupancy in tenants.by_job.items():
            if occupancy.gang.queue == queue and occupancy.first_end == NEVER:
                used += 0.0 if job in tenants.stopping else occupancy.total
        return used

    def delayed_by(self, claims: Sequence[PendingGang]) -> ReservedStart | None:
        """The gang whose part of the share the claimant would use, and not give back in time."""
        for claim in claims:
            debt = self._debts.get(claim.queue)
            if debt is None or self._ends_by(claim, debt.head.at):
                continue
            need = minimum_amounts(claim, self._shares.table)
            if bool((need > self.room(claim.queue))[need > 0].any()):
                return debt.head
        return None

    def _ends_by(self, claim: PendingGang, at: Micros | None) -> bool:
        return at is not None and claim.duration is not None and self._now + claim.duration <= at

    def room(self, queue: str) -> Floats:
        """What more the queue may use, by row."""
        debt = self._debts.get(queue)
        branch = self._shares.branches[queue]
        if debt is None:
            return np.full(len(branch.used), np.inf)
        left: Floats = np.where(debt.need > 0, branch.deserved - branch.used - debt.need, np.inf)
        left[~self._shares.shared] = np.inf
        return left
