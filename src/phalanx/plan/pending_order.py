"""The buckets of each queue in the order of their first gangs, kept from pass to pass."""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from phalanx.core.reasons import Reason
from phalanx.core.time_units import Micros
from phalanx.plan.model import NEVER, PlannerPolicy
from phalanx.plan.state.nodes import Ints

if TYPE_CHECKING:
    from phalanx.plan.pending import Bucket, FitKey, KeyedBucket

#: So few buckets are looked at one by one: that is faster than to compare arrays.
_FEW_BUCKETS = 32


class QueueOrder:
    """The buckets of one queue. Never changed: `after` makes a new one."""

    def __init__(self) -> None:
        """No buckets."""
        self.keyed: list[KeyedBucket] = []
        #: The times from which and before which the order is the same.
        self._since, self._until = -NEVER, NEVER
        #: Before this time no gang is overdue.
        self.overdue_from: Micros = NEVER
        #: The buckets whose gangs never fit, with what the empty cluster lacks for them; and the
        #: version of that cluster.
        self.never: tuple[object, dict[Bucket, Reason]] | None = None

    def holds_at(self, now: Micros) -> bool:
        """Whether the order is the same at a time."""
        return self._since <= now < self._until

    @cached_property
    def priorities(self) -> set[int]:
        """The priorities of the gangs."""
        return {bucket.first.priority for _, _, bucket in self.keyed}

    @cached_property
    def fit_keys(self) -> "list[FitKey]":
        """The requests of the buckets, each with the label of the domains that it requires."""
        return [*dict.fromkeys(bucket.fit_key for _, _, bucket in self.keyed)]

    def fitting(self, most: "Mapping[FitKey, int]") -> "list[KeyedBucket]":
        """The buckets that need no more tasks than fit, by request."""
        if len(self.keyed) < _FEW_BUCKETS:
            return [each for each in self.keyed if each[2].need <= most[each[2].fit_key]]
        fits = np.array([most[key] for key in self.fit_keys], np.int64)
        return [*compress(self.keyed, (self._needs <= fits[self._fit_numbers]).tolist())]

    @cached_property
    def _needs(self) -> Ints:
        """The need of each bucket."""
        return np.array([bucket.need for _, _, bucket in self.keyed], np.int64)

    @cached_property
    def _fit_numbers(self) -> Ints:
        """The position among `fit_keys` of the key of each bucket."""
        numbers = {key: number for number, key in enumerate(self.fit_keys)}
        return np.array([numbers[bucket.fit_key] for _, _, bucket in self.keyed], np.int64)

    def after(
        self,
        removed: Collection[int],
        added: Iterable["Bucket"],
        policy: PlannerPolicy,
        now: Micros,
    ) -> "QueueOrder":
        """The order at a time, without the buckets of some numbers, and with others."""
        new = QueueOrder()
        new.keyed = [each for each in self.keyed if each[1] not in removed]
        more = list(added)
        if self.holds_at(now):
            new._since, new._until = self._since, self._until
            new.overdue_from = self.overdue_from
        else:
            more += (bucket for _, _, bucket in new.keyed)
            new.keyed = []
        for bucket in more:
            starves_at, _, _, overdue_from = bucket.keys(policy)
            if starves_at <= now:
                new._since = max(new._since, starves_at)
            else:
                new._until = min(new._until, starves_at)
            new.overdue_from = min(new.overdue_from, overdue_from)
            new.keyed.append(bucket.keyed(policy, now))
        new.keyed.sort()
        return new
