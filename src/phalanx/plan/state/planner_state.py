"""The core's cluster as the planner sees it, brought up to date with what has changed in it.

Gangs and nodes are never changed once the cluster has taken them over, so they are shared and may
be read in another thread while the cluster goes on.
"""

from collections.abc import Mapping

from phalanx.core.changes import merge
from phalanx.core.cluster import Cluster
from phalanx.core.gang import Gang
from phalanx.core.model import Queue
from phalanx.core.node import Node
from phalanx.core.spec.job import Micros
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Plan
from phalanx.plan.model import PendingGang, PlannerPolicy
from phalanx.plan.state.from_cluster import Translator, machine_of
from phalanx.plan.state.group_members import GroupMembers
from phalanx.plan.state.snapshot import Snapshot


class ClusterState:
    def __init__(self, cluster: Cluster, policy: PlannerPolicy | None = None) -> None:
        """Of a cluster as it is."""
        self.gangs: dict[str, Gang] = {}
        self.nodes: dict[str, Node] = {}
        self.snapshot = Snapshot(policy)
        self.snapshot.now = cluster.loaded_at
        self._translate = Translator(cluster.settings)
        self._mates = GroupMembers()
        self.update(cluster.gangs, cluster.nodes, dict(cluster.queues))

    def update(
        self,
        gangs: Mapping[str, Gang | None],
        nodes: Mapping[str, Node | None],
        queues: dict[str, Queue] | None,
    ) -> None:
        """Take over what has changed; None is gone. Queues are given whole."""
        if queues is not None:
            self.snapshot.set_queues(queues)
        merge(self.gangs, gangs)
        merge(self.nodes, nodes)
        # A gang may have left a node that goes, and may have gone to one that has come.
        for name, node in nodes.items():
            if node is not None:
                self.snapshot.put_node(name, machine_of(node))
        near: set[str] = set()
        for job, gang in gangs.items():
            near |= self._mates.put(job, gang)
        for job, gang in gangs.items():
            self._take(job, gang)
        for job in near - gangs.keys():
            self._take(job, self.gangs[job])
        for name, node in nodes.items():
            if node is None:
                self.snapshot.remove_node(name)

    def _take(self, job: str, gang: Gang | None) -> None:
        snapshot = self.snapshot
        claim = None if gang is None else self._claim(gang)
        tenant = None if gang is None else self._translate.tenant_of(gang)
        if claim is None:
            snapshot.remove_claim(job)
        else:
            snapshot.put_claim(claim)
        if tenant is None:
            snapshot.remove_tenant(job)
        else:
            snapshot.put_tenant(tenant)

    def _claim(self, gang: Gang) -> PendingGang | None:
        return self._translate.claim_of(gang, self.nodes, self._mates.of(gang.job.id))

    def plan(self, now: Micros) -> Plan:
        """Plan, and remember what the next plan goes on with."""
        made = plan(self.snapshot, now)
        self.snapshot.heads, self.snapshot.cursor = made.heads, made.cursor
        return made
