"""What comes out of a plan. Each decision is applied whole or not at all."""

from collections.abc import Iterator

import msgspec

from phalanx.core.events import Placement
from phalanx.core.spec.job import Micros
from phalanx.plan.explain.reasons import PendingReasons


class Reserve(msgspec.Struct, frozen=True):
    """One claimant starts: every placement in it, or none."""

    placements: tuple[Placement, ...]


class PlannedVictim(msgspec.Struct, frozen=True):
    job: str
    version: int
    tasks: tuple[int, ...] = ()  #: the tasks it gives; none named means that it goes whole
    lost: float = 0.0  #: GPU-seconds that are lost with it


class Evict(msgspec.Struct, frozen=True):
    """Victims make room, and it is kept for the claimant's placements.

    Without victims: room that others are leaving anyway is kept.
    """

    placements: tuple[Placement, ...]
    victims: tuple[PlannedVictim, ...]


class Hold(msgspec.Struct, frozen=True):
    """A non-strict gang keeps these places, besides what it holds, while it waits for the rest."""

    placement: Placement


class LetGo(msgspec.Struct, frozen=True):
    """A gang gives up what it holds, because nobody who holds could ever start."""

    job: str
    version: int


class TimeOut(msgspec.Struct, frozen=True):
    """A gang has waited as long as it may."""

    job: str
    since: Micros


Decision = Reserve | Evict | Hold | LetGo | TimeOut


class ReservedStart(msgspec.Struct, frozen=True):
    """A gang whose start is kept free: from then on, on these nodes."""

    job: str
    nodes: tuple[str, ...]
    at: Micros | None  #: None: nobody knows when, but it has waited too long already


class Plan(msgspec.Struct, frozen=True):
    at: Micros  #: the time that it was made for
    decisions: tuple[Decision, ...]
    #: Why each job that is left waiting waits.
    reasons: PendingReasons
    reserved_starts: tuple[ReservedStart, ...] = ()
    cursor: int = 0  #: where the next plan's searches for victims begin

    def reserved(self) -> Iterator[Placement]:
        for decision in self.decisions:
            if isinstance(decision, Reserve):
                yield from decision.placements
