"""Views of what queues use and deserve. Amounts are written as users write them."""

from typing import Any

import msgspec

from phalanx.wire.plan import VictimView


class QueueShareView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sums of a queue and the queues below it; `running` and `pending` count its own gangs."""

    queue: str
    weight: int
    used: dict[str, Any]
    requested: dict[str, Any]  #: by pending gangs that could start
    deserved: dict[str, Any]  #: the fair share
    borrowed: dict[str, Any]  #: what it uses above its fair share
    quota: dict[str, Any]
    limit: dict[str, Any]
    running: int
    pending: int
    parent: str | None = None
    stopped: bool = False


class SharesView(msgspec.Struct, frozen=True):
    capacity: dict[str, Any]  #: of the workers that are not lost
    queues: tuple[QueueShareView, ...]


class StartView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that would start. It has no name if the caller may not see its namespace."""

    queue: str
    job: str | None = None
    name: str | None = None  #: namespace/name


class QueuePlanView(msgspec.Struct, frozen=True):
    """What the next plan would do otherwise if a queue were changed."""

    message: str
    before: tuple[QueueShareView, ...]
    after: tuple[QueueShareView, ...]
    starts: tuple[StartView, ...]  #: only after the change
    waits: tuple[StartView, ...]  #: would start without the change
    victims: tuple[VictimView, ...]  #: would be evicted only after the change
