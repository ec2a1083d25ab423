"""What a plan is made from, and what comes out of it.

Gangs and nodes are never changed once the cluster has taken them over, so a snapshot shares them
and may be read in another thread while the cluster goes on.
"""

from collections.abc import Mapping

import msgspec

from phalanx.core.cluster import Cluster
from phalanx.core.events import Placement
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.reasons import Reason
from phalanx.core.spec import MINUTE, Micros


class Snapshot(msgspec.Struct, frozen=True):
    now: Micros
    gangs: Mapping[str, Gang]
    nodes: Mapping[str, Node]
    queues: Mapping[str, Queue] = {}
    starve_after: Micros = 10 * MINUTE  #: whoever waits longer is waited for


def snapshot_of(cluster: Cluster, now: Micros, starve_after: Micros) -> Snapshot:
    """The cluster as it is now, whatever becomes of it."""
    gangs, nodes, queues = dict(cluster.gangs), dict(cluster.nodes), dict(cluster.queues)
    return Snapshot(now, gangs, nodes, queues, starve_after)


class Reserve(msgspec.Struct, frozen=True):
    """One claimant starts: every placement in it, or none."""

    placements: tuple[Placement, ...]


class Plan(msgspec.Struct, frozen=True):
    decisions: tuple[Reserve, ...]
    #: Why each job that is left waiting waits.
    reasons: Mapping[str, Reason]
