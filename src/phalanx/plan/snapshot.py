"""What a plan is made from, and what comes out of it.

Gangs and nodes are never changed once the cluster has taken them over, so a snapshot shares them
and may be read in another thread while the cluster goes on.
"""

from collections.abc import Mapping

import msgspec

from phalanx.core.events import Placement
from phalanx.core.gang import Gang
from phalanx.core.node import Node
from phalanx.core.reasons import Reason
from phalanx.core.spec import Micros


class Snapshot(msgspec.Struct, frozen=True):
    now: Micros
    gangs: Mapping[str, Gang]
    nodes: Mapping[str, Node]


class Reserve(msgspec.Struct, frozen=True):
    """One claimant starts: every placement in it, or none."""

    placements: tuple[Placement, ...]


class Plan(msgspec.Struct, frozen=True):
    decisions: tuple[Reserve, ...]
    #: Why each job that is left waiting waits.
    reasons: Mapping[str, Reason]
