"""The work that the searches for victims of one pass may do.

Work is counted, not timed, so that the same state always gives the same plan.
"""

import msgspec

#: The work of a trial placement of the preemptor, and of counting its places; that of looking at a
#: candidate is 1.
_TRIAL = 20
_COUNT = 5


class SearchCursor(msgspec.Struct, frozen=True):
    """Where the searches of the next plan go on.

    A round of searches takes as many plans as it needs, and every gang has one turn in it.
    """

    #: Jobs that have had their turn in this round; empty when a new round begins.
    done: frozenset[str] = frozenset()
    #: The budget is doubled so many times, because it was not enough for a single search.
    doubled: int = 0

    @property
    def is_at_start(self) -> bool:
        """Whether the next plan begins a round: the last one left no gang out."""
        return not self.done and not self.doubled


class SearchBudget:
    def __init__(self, work: int) -> None:
        self._left = work
        #: Whether a search has left something out for lack of work.
        self.is_exceeded = False

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def look_at(self, candidates: int) -> None:
        """Count the work of looking at candidates for eviction."""
        self._left -= candidates

    def try_placement(self) -> None:
        """Count the work of a trial placement."""
        self._left -= _TRIAL

    def count_places(self) -> None:
        """Count the work of counting the places of the preemptor."""
        self._left -= _COUNT

    def allows_more(self) -> bool:
        """Whether a search may go on; if not, that is recorded."""
        if self.is_spent:
            self.is_exceeded = True
        return not self.is_spent
