"""Whose turn it is: the queue that is served worst, and in it the gang that stands first.

From the root down, by what each queue would have once its first gang is placed. Only queues whose
use or first gang has changed are looked at again.
"""

import heapq
from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from phalanx.core.spec.job import Micros
from phalanx.plan.fairshare.queue_tree import QueueBranch
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, PlannerPolicy
from phalanx.plan.pending import Bucket, order_key
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.nodes import Floats

_Key = tuple[object, ...]


class Candidate(NamedTuple):
    """A claimant that is to be served: a gang, or the gangs of a group."""

    claims: tuple[PendingGang, ...]
    last: PendingGang  #: the member that stands last; it is its queue's turn
    line: Bucket | None = None
    position: int = 0

    @property
    def queue(self) -> str:
        return self.last.queue


class _Stand(NamedTuple):
    """A claimant in its queue's heap."""

    key: _Key
    number: int
    turn: Candidate


class ServingOrder:
    def __init__(
        self,
        policy: PlannerPolicy,
        shares: FairShares,
        now: Micros,
        in_vain: Callable[[Candidate], bool],
    ) -> None:
        """Turns that would be in vain are passed over."""
        self._in_vain = in_vain
        self._policy = policy
        self._shares = shares
        self._now = now
        self._heaps: dict[str, list[_Stand]] = {name: [] for name in shares.branches}
        self._count = 0
        #: For each queue, itself and those below it: the claimant that would be next; and how the
        #: queue ranks among its siblings with it, once that matters.
        self._best: dict[str, Candidate | None] = {}
        self._ranks: dict[str, _Key] = {}
        self._late: set[Bucket | None] = set()

    def key_of(self, line: Bucket) -> _Key:
        """Where the first of a line stands."""
        return line.order_key(self._policy, self._now)

    def add_lines(self, lines: Iterable[Bucket], short: Iterable[Bucket]) -> None:
        """All of a pass's lines at once, and some that do not fit.

        Of those, gangs that are larger than all that their queue deserves come last if others want
        something too, so that the queue is not judged by them.
        """
        shares = self._shares
        for line in short if shares.is_contended else ():
            if not shares.share_could_hold(
                line.first.queue, minimum_amounts(line.first, shares.table)
            ):
                self._late.add(line)
        for line in chain(lines, short):
            head = line.head
            self._count += 1
            key = (line in self._late, *self.key_of(line))
            stand = _Stand(key, self._count, Candidate((head,), head, line, 0))
            self._heaps[head.queue].append(stand)
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._best.clear()
        self._ranks.clear()

    def add_line(self, line: Bucket, position: int) -> None:
        """What is left of a line."""
        claim = line.gang(position)
        if claim is not None:
            self._add(Candidate((claim,), claim, line, position), claim)

    def add_group(self, claims: tuple[PendingGang, ...]) -> None:
        """A group stands where the lowest priority and the latest creation of its members do."""
        last = max(claims, key=lambda claim: (-claim.priority, claim.created_at, claim.name))
        size = sum(claim.size for claim in claims)
        created = max(claim.created_at for claim in claims)
        self._add(Candidate(claims, last), replace(last, size=size, created_at=created))

    def add_for_more(self, claim: PendingGang, key: _Key) -> None:
        """A gang that could use what it does not need stands where it is told."""
        self._push(Candidate((claim,), claim), key)

    def _add(self, turn: Candidate, stands_as: PendingGang) -> None:
        self._push(turn, (turn.line in self._late, *order_key(self._policy, stands_as, self._now)))

    def _push(self, turn: Candidate, key: _Key) -> None:
        self._count += 1
        heapq.heappush(self._heaps[turn.queue], _Stand(key, self._count, turn))
        self.changed(turn.queue)

    def changed(self, queue: str) -> None:
        """What the queue uses, or who stands first in it, is not what it was."""
        for branch in self._shares.branches[queue].path():
            self._best.pop(branch.queue.name, None)
            self._ranks.pop(branch.queue.name, None)

    def pop(self) -> Candidate | None:
        turn = self._first(self._shares.root)
        if turn is None:
            return None
        heapq.heappop(self._heaps[turn.queue])
        self.changed(turn.queue)
        return turn

    def _first(self, branch: QueueBranch) -> Candidate | None:
        """The next claimant of a queue or of those below it."""
        name = branch.queue.name
        if name in self._best:
            return self._best[name]
        own = self._heaps.get(name)
        while own and self._in_vain(own[0].turn):
            heapq.heappop(own)
        turns = [(child, turn) for child in branch.children if (turn := self._first(child))]
        if own:
            # Gangs of a queue that has queues below it compete with those as a child would.
            turns.append((branch, own[0].turn))
        best = None
        if len(turns) == 1:
            best = turns[0][1]
        elif turns:
            best = min(turns, key=lambda found: self._rank(*found))[1]
        self._best[name] = best
        return best

    def _need(self, branch: QueueBranch, turn: Candidate) -> Floats:
        """What a claimant takes of a queue and of those below it."""
        shares = self._shares
        if len(turn.claims) == 1:
            return minimum_amounts(turn.last, shares.table)
        inside = [c for c in turn.claims if branch in shares.branches[c.queue].path()]
        need: Floats = np.sum([minimum_amounts(claim, shares.table) for claim in inside], axis=0)
        return need

    def _rank(self, branch: QueueBranch, turn: Candidate) -> _Key:
        known = self._ranks.get(branch.queue.name)
        if known is None:
            need = self._need(branch, turn)
            above, share = self._shares.rank(branch, need)
            oldest = min(claim.created_at for claim in turn.claims)
            queue = branch.queue
            known = self._ranks[queue.name] = (above, share, -queue.priority, oldest, queue.name)
        return known
