"""The result of a plan. Each decision is applied whole or not at all."""

from collections.abc import Iterator

import msgspec

from phalanx.core.events import Placement
from phalanx.core.time_units import Micros
from phalanx.plan.explain.reason_index import PendingReasons
from phalanx.plan.fairshare.unused_shares import UnusedShares
from phalanx.plan.preemption.search_budget import SearchCursor


class Reserve(msgspec.Struct, frozen=True):
    """Start a gang or a group, or let a running gang grow."""

    placements: tuple[Placement, ...]


class PlannedVictim(msgspec.Struct, frozen=True):
    job: str
    version: int
    tasks: tuple[int, ...] = ()  #: the tasks that are evicted; empty: the whole gang
    lost: float = 0.0  #: GPU-seconds of work lost


class Evict(msgspec.Struct, frozen=True):
    """Stop victims, and keep the capacity for the placements.

    Without victims: keep capacity that stopping tasks are about to free.
    """

    placements: tuple[Placement, ...]
    victims: tuple[PlannedVictim, ...]
    moves: tuple[Placement, ...] = ()  #: where victims that are moved start again


class Gather(msgspec.Struct, frozen=True):
    """Add places to those that a non-strict gang has gathered."""

    placement: Placement


class ReleaseGathered(msgspec.Struct, frozen=True):
    """Release the gathered places of a gang, because no gathering gang could ever start."""

    job: str
    version: int


class TimeOut(msgspec.Struct, frozen=True):
    """End a pending gang of which a timeout has ended."""

    job: str
    at: Micros  #: when it ended; 0 for a gang that ends with its group


Decision = Reserve | Evict | Gather | ReleaseGathered | TimeOut


class ReservedStart(msgspec.Struct, frozen=True):
    """A start that other gangs must not delay."""

    job: str
    nodes: tuple[str, ...]
    at: Micros | None  #: None: the time is unknown, and the nodes are kept for a starving gang
    #: The number of tasks on each of the nodes, for gangs whose tasks are all alike.
    counts: tuple[int, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    at: Micros  #: the time that it was made for
    decisions: tuple[Decision, ...]
    reasons: PendingReasons  #: why each gang that stays pending is pending
    reserved_starts: tuple[ReservedStart, ...] = ()
    cursor: SearchCursor = SearchCursor()  #: where the next plan goes on to search for victims
    #: Pending jobs whose start the last plan had reserved, and this one reserves later or not.
    broken_starts: tuple[str, ...] = ()
    unused_shares: UnusedShares = UnusedShares()

    def reserved(self) -> Iterator[Placement]:
        for decision in self.decisions:
            if isinstance(decision, Reserve):
                yield from decision.placements
