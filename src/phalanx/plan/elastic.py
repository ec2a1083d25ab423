"""What is left over: tasks beyond the minimums, a few at a time, so that everybody gets a share.

Queues take turns as they do for whole gangs. In a queue the highest priority goes first, then
whoever has least beyond its minimum; in a gang the role that has least for its own minimum.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from msgspec.structs import replace

from phalanx.core.spec.job import Micros
from phalanx.plan.model import OrderKey, PendingGang, PlannerPolicy, RoleRequest
from phalanx.plan.order import ServingOrder
from phalanx.plan.pending import order_key
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.state.capacity import FreeCapacity

#: What is left is given away in about so many steps.
_STEPS = 256


class GrowingGang:
    """A gang that could use more than it needs."""

    def __init__(self, trial: PlacementTrial) -> None:
        self.trial = trial
        self.roles = [part for part in trial.gang.roles if trial.unplaced(part)]
        self.above_minimum = trial.gang.above_minimum

    def next_part(self) -> RoleRequest:
        return min(self.roles, key=self._served)

    def _served(self, part: RoleRequest) -> float:
        has = part.placed + len(part.tasks) - self.trial.unplaced(part)
        return has / part.minimum if part.minimum else math.inf


class ElasticGrowth:
    def __init__(
        self, order: ServingOrder, policy: PlannerPolicy, now: Micros, views: Sequence[FreeCapacity]
    ) -> None:
        self._order = order
        self._policy = policy
        self._now = now
        self._views = views
        #: How many tasks of a request there was room for at first.
        self._room = cache(views[0].total_fit)
        self._growers: dict[str, GrowingGang] = {}

    def trials(self, claims: Iterable[PendingGang]) -> list[PlacementTrial]:
        """For those that run and for whom there might be something."""
        worth = (claim for claim in claims if any(self._room(p.request) for p in claim.roles))
        return [trial for c in worth if (trial := PlacementTrial(c, self._views)).place_minimum()]

    def share_out(
        self,
        trials: Iterable[PlacementTrial],
        give: Callable[[PlacementTrial, RoleRequest, int], int],
    ) -> None:
        """`give` places at most so many tasks of a part, and says how many."""
        for trial in trials:
            grower = GrowingGang(trial)
            if any(self._room(part.request) for part in grower.roles):
                self._growers[trial.gang.job] = grower
                self._line_up(grower)
        step = 1 + self._much() // _STEPS
        while (turn := self._order.pop()) is not None:
            grower = self._growers[turn.last.job]
            part = grower.next_part()
            left = grower.trial.unplaced(part)
            alone = len(self._growers) == 1 and len(grower.roles) == 1
            most = left if alone else min(step, left)
            given = give(grower.trial, part, most)
            grower.above_minimum += given
            if given < most or given == left:
                grower.roles.remove(part)
            if grower.roles:
                self._line_up(grower)
            else:
                del self._growers[turn.last.job]

    def _much(self) -> int:
        """No more tasks than this can be given away."""
        parts = [(g.trial, part) for g in self._growers.values() for part in g.roles]
        wanted = sum(trial.unplaced(part) for trial, part in parts)
        return min(wanted, sum(map(self._room, {part.request for _, part in parts})))

    def _line_up(self, grower: GrowingGang) -> None:
        claim, part = grower.trial.gang, grower.next_part()
        # It asks for one task, as if that were all that it needs.
        one = replace(part, tasks=part.tasks[:1], need=1)
        asks = replace(claim, roles=(one,), need=1, gathered=())
        priority = -claim.priority if OrderKey.PRIORITY in self._policy.order else 0
        key = (priority, grower.above_minimum, *order_key(self._policy, claim, self._now))
        self._order.add_for_more(asks, key)
