"""What would happen to a job, as it is shown: where and when it would start, who would give way."""

from typing import Any

import msgspec

from phalanx.core.model import Phase


class PlannedTask(msgspec.Struct, frozen=True):
    task: int
    worker: str


class VictimView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gang that would give way. Who may not see its namespace is not told its name."""

    gpu_s: float  #: what it would lose
    cost: float
    job: str | None = None
    name: str | None = None  #: namespace/name
    tasks: tuple[int, ...] = ()  #: what it would give; none named means that it would go whole


class AlternativeView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the planner has tried, and what would come of it."""

    type: str  #: `Fewer`, `Shorter` or `Higher`
    message: str
    tasks: int | None = None  #: with so many it would start now
    time_limit_s: float | None = None  #: with this limit it would start now
    priority: int | None = None  #: with this priority the victims would give way to it
    victims: tuple[VictimView, ...] = ()


class PlanView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What would happen if this were submitted now."""

    starts: bool  #: at once
    message: str
    warnings: tuple[dict[str, Any], ...]
    placements: tuple[PlannedTask, ...] = ()  #: where it would start, perhaps after its victims
    victims: tuple[VictimView, ...] = ()  #: who would have to stop first
    starts_at: str | None = None  #: until when its start would be kept free
    reason: dict[str, Any] | None = None  #: why it would wait
    alternatives: tuple[AlternativeView, ...] = ()


class Why(msgspec.Struct, frozen=True):
    """Why a job does not run, in words and as data."""

    job: str
    phase: Phase
    message: str
    reason: dict[str, Any] | None = None
    remedy: str | None = None  #: what would have to change
    starts_at: str | None = None
    victims: tuple[VictimView, ...] = ()
    alternatives: tuple[AlternativeView, ...] = ()
