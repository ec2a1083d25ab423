"""Whose turn it is: the queue that is served worst, and in it the gang that stands first.

From the root down, by what each queue would have once its first gang is placed. Only queues whose
use or first gang has changed are looked at again.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.core.spec import Micros
from phalanx.plan.model import Claim, Policy
from phalanx.plan.nodes import Floats
from phalanx.plan.place import need_of
from phalanx.plan.share import Branch, Shares
from phalanx.plan.waiting import Line, order_key

_Key = tuple[object, ...]


class Turn(NamedTuple):
    """A claimant that is to be served: a gang, or the gangs of a group."""

    claims: tuple[Claim, ...]
    queue: str  #: in whose turn it is; of a group, that of the member that stands last
    need: Floats  #: what that queue would give
    line: Line | None = None
    position: int = 0


class _Stand(NamedTuple):
    """A claimant in its queue's heap."""

    key: _Key
    number: int
    turn: Turn


class Order:
    def __init__(self, policy: Policy, shares: Shares, now: Micros) -> None:
        self._policy = policy
        self._shares = shares
        self._now = now
        self._heaps: dict[str, list[_Stand]] = {name: [] for name in shares.branches}
        self._count = 0
        #: For each queue: its claimant that would be next, and how the queue ranks with it.
        self._best: dict[str, tuple[_Key, Turn] | None] = {}

    def add_line(self, line: Line, position: int = 0) -> None:
        claim = line.claim(position)
        if claim is not None:
            self._add((claim,), line, position)

    def add_group(self, claims: tuple[Claim, ...]) -> None:
        self._add(claims, None, 0)

    def _add(self, claims: tuple[Claim, ...], line: Line | None, position: int) -> None:
        last = max(claims, key=lambda claim: (-claim.priority, claim.created_at, claim.name))
        turn = Turn(claims, last.queue, need_of(last, self._shares.table), line, position)
        key = order_key(self._policy, claims, self._now)
        self._count += 1
        heapq.heappush(self._heaps[last.queue], _Stand(key, self._count, turn))
        self.changed(last.queue)

    def changed(self, queue: str) -> None:
        """What the queue uses, or who stands first in it, is not what it was."""
        for branch in self._shares.branches[queue].path():
            self._best.pop(branch.queue.name, None)

    def pop(self) -> Turn | None:
        found = self._first(self._shares.root.children)
        if found is None:
            return None
        turn = found[1]
        heapq.heappop(self._heaps[turn.queue])
        self.changed(turn.queue)
        return turn

    def _first(self, branches: Iterable[Branch]) -> tuple[_Key, Turn] | None:
        best: tuple[_Key, Turn] | None = None
        for branch in branches:
            found = self._of(branch)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best

    def _of(self, branch: Branch) -> tuple[_Key, Turn] | None:
        """A queue's next claimant, with the queue's rank among its siblings."""
        name = branch.queue.name
        if name in self._best:
            return self._best[name]
        heap = self._heaps[name]
        below = self._first(branch.children)
        if heap and below is not None:
            # Gangs of a queue that has queues below it compete with those as a child would.
            own = self._ranked(branch, heap[0].turn)
            found: tuple[_Key, Turn] | None = min(own, below, key=lambda ranked: ranked[0])
        elif heap:
            found = (), heap[0].turn
        else:
            found = below
        ranked = None if found is None else self._ranked(branch, found[1])
        self._best[name] = ranked
        return ranked

    def _ranked(self, branch: Branch, turn: Turn) -> tuple[_Key, Turn]:
        above, share = self._shares.rank(branch, turn.need)
        oldest = min(claim.created_at for claim in turn.claims)
        queue = branch.queue
        return (above, share, -queue.priority, oldest, queue.name), turn
