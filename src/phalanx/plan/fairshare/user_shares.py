"""What each user has of a queue, where the users of a queue are served by their dominant shares."""

from collections.abc import Mapping

import numpy as np

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RunningGang
from phalanx.plan.placement.amounts import amounts_by_row, minimum_amounts
from phalanx.plan.state.nodes import Floats

#: The dominant share of a user once a gang is placed, and before.
UserShare = tuple[float, float]


class UserShares:
    """The dominant share of a user is the largest part of the cluster's capacity of one resource
    that the user's gangs have in a queue."""

    def __init__(
        self, used: Mapping[tuple[str, str], Mapping[str, int]], shares: FairShares
    ) -> None:
        """`used` is what the gangs of each queue and user use, by resource."""
        self._table = shares.table
        counts = shares.shared & (shares.capacity > 0)
        self._capacity = np.where(counts, shares.capacity, np.inf)
        self._used = {key: amounts_by_row(amounts, self._table) for key, amounts in used.items()}

    def use(self, gang: PendingGang | RunningGang, amounts: Floats) -> None:
        """Add to what the user of a gang has; negative amounts are freed."""
        key = (gang.queue, gang.user)
        self._used[key] = self._used.get(key, 0.0) + amounts

    def with_gang(self, gang: PendingGang) -> UserShare:
        """The dominant share of a gang's user once the minimum of the gang is placed, and before.

        The smaller one goes first.
        """
        used = self._used.get((gang.queue, gang.user), np.zeros(len(self._capacity)))
        return self._dominant(used + minimum_amounts(gang, self._table)), self._dominant(used)

    def _dominant(self, amounts: Floats) -> float:
        return round(float((amounts / self._capacity).max(initial=0.0)), 9)
