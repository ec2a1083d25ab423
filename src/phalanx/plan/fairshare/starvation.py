"""The part of a queue's share that is reserved for a starving gang of that queue, and the limit or
quota that is reserved for an overdue one.

Smaller gangs behind it could otherwise use the share, the limit or the quota again and again, and
the queue would never have enough of it left for the large gang.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phalanx.core.reasons import QueueLimit, QueueQuota
from phalanx.core.time_units import Micros
from phalanx.plan.decisions import ReservedStart
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.nodes import Floats
from phalanx.plan.state.running import RunningGangs


class _Reserve(NamedTuple):
    """A part of a queue's share, and the gang it is reserved for."""

    need: Floats  #: amounts of the starving gang's minimum
    start: ReservedStart


class _BoundReserve(NamedTuple):
    """The limit of a queue for one resource, or its quota for gangs that are not preemptible, and
    the gang that nothing else may use it before."""

    row: int
    start: ReservedStart
    of_quota: bool

    def binds(self, gang: PendingGang) -> bool:
        """Whether a gang below the queue would use it, if the gang requests the resource."""
        return not (self.of_quota and gang.preemptible)


class StarvationReserve:
    """At most one reserve of its share per queue, for the first starving gang in it, and one of its
    limit and its quota, for the first overdue gang that waits for it."""

    def __init__(self, shares: FairShares, running: RunningGangs, now: Micros) -> None:
        self._shares = shares
        self._running = running
        self._now = now
        self._reserves: dict[str, _Reserve] = {}
        #: By queue, and whether it is the quota.
        self._bounds: dict[tuple[str, bool], _BoundReserve] = {}

    def reserve(self, gang: PendingGang, start_at: Micros | None) -> None:
        """Reserve a part of the share for a starving gang, if `can_reserve`."""
        if self.can_reserve(gang):
            need = minimum_amounts(gang, self._shares.table)
            self._reserves[gang.queue] = _Reserve(need, ReservedStart(gang.job, (), start_at))

    def can_reserve(self, gang: PendingGang) -> bool:
        """Whether a starving gang exceeds what is left of its queue's share, the share holds the
        gang once all work with a known end has ended, and no other gang has a reserve in it.

        Only while other queues request something: a queue alone is not bound to a share.
        """
        shares = self._shares
        if gang.queue in self._reserves or not shares.is_contended:
            return False
        need = minimum_amounts(gang, shares.table)
        if shares.stays_within_share(shares.branches[gang.queue], need):
            return False
        lasting = self._running.used_without_end(gang.queue) * (need > 0)
        return shares.share_could_hold(gang.queue, need + lasting)

    def reserve_bound(self, gang: PendingGang, bound: QueueLimit | QueueQuota) -> None:
        """Let nothing else use the limit of a queue, or its quota for gangs that are not
        preemptible, before an overdue gang."""
        row, of_quota = self._shares.table.rows[bound.resource], isinstance(bound, QueueQuota)
        reserve = _BoundReserve(row, ReservedStart(gang.job, (), None), of_quota)
        self._bounds.setdefault((bound.queue, of_quota), reserve)

    def _bounds_of(self, gang: PendingGang) -> list[_BoundReserve]:
        """The reserved limits and quotas of the gang's queue and of those above it that bind it."""
        if not self._bounds:
            return []
        names = {branch.queue.name for branch in self._shares.branches[gang.queue].path()}
        reserves = (reserve for (name, _), reserve in self._bounds.items() if name in names)
        return [reserve for reserve in reserves if reserve.binds(gang)]

    def delayed_at_bound(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """The overdue gang that waits for a limit or quota which these other gangs would use."""
        for gang in gangs:
            for reserve in self._bounds_of(gang):
                need = minimum_amounts(gang, self._shares.table)[reserve.row]
                if need > 0 and reserve.start.job != gangs[0].job:
                    return reserve.start
        return None

    def delayed_by(self, gangs: Sequence[PendingGang]) -> ReservedStart | None:
        """The starving gang whose reserve these gangs would use beyond its start time, or the
        overdue gang that waits for a limit or quota which they would use."""
        if (start := self.delayed_at_bound(gangs)) is not None:
            return start
        for gang in gangs:
            reserve = self._reserves.get(gang.queue)
            if reserve is None or self._ends_by(gang, reserve.start.at):
                continue
            if self._uses(gang, reserve):
                return reserve.start
        return None

    def _uses(self, gang: PendingGang, reserve: _Reserve) -> bool:
        """Whether the gang would use a part of the reserve of its queue."""
        shares, branch = self._shares, self._shares.branches[gang.queue]
        need, reserved = minimum_amounts(gang, shares.table).tolist(), reserve.need.tolist()
        used, deserved = branch.used.tolist(), branch.deserved.tolist()
        for row in shares.tree.layout.shared_rows:
            left = deserved[row] - used[row] - reserved[row]
            if need[row] > 0 and reserved[row] > 0 and need[row] > left:
                return True
        return False

    def _ends_by(self, gang: PendingGang, at: Micros | None) -> bool:
        """Whether the gang, started now, has certainly ended by this time."""
        return at is not None and gang.duration is not None and self._now + gang.duration <= at

    def headroom(self, gang: PendingGang) -> Floats:
        """Amounts that a gang may use without touching a reserve, by row."""
        reserve = self._reserves.get(gang.queue)
        branch = self._shares.branches[gang.queue]
        headroom: Floats = np.full(len(branch.used), np.inf)
        if reserve is not None:
            left = branch.deserved - branch.used - reserve.need
            headroom = np.where((reserve.need > 0) & self._shares.shared, left, np.inf)
        for bound in self._bounds_of(gang):
            headroom[bound.row] = 0.0
        return headroom
