"""Whether a job could ever start on a set of nodes, before it is submitted."""

from collections.abc import Mapping

from phalanx.core.node import Node
from phalanx.core.reasons import NeverFits, Reason
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.plan.explain.shortage import never_fits
from phalanx.plan.model import PendingGang, RoleRequest
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.from_cluster import Translator, node_spec
from phalanx.plan.state.nodes import NodeTable


class FitsEver:
    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._table = NodeTable()
        self._translate = Translator(CoreSettings())
        for name, node in nodes.items():
            self._table.put(name, node_spec(node))

    def update(self, name: str, node: Node | None) -> None:
        """Add or replace a node; None removes it."""
        if node is not None:
            self._table.put(name, node_spec(node))
        elif name in self._table.index:
            self._table.remove(name)

    def gang(self, spec: JobSpec) -> PendingGang:
        """The job as the planner sees it; equal for jobs that request the same."""
        tasks = 0
        roles = []
        for number, role in enumerate(spec.roles):
            request = self._translate.request(role)
            indices = range(tasks, tasks + role.replicas)
            roles.append(RoleRequest(f"{number}", request, indices, role.min))
            tasks += role.replicas
        return PendingGang(
            job="",
            name="",
            version=0,
            queue=spec.queue,
            priority=spec.priority,
            created_at=0,
            size=tasks,
            roles=tuple(roles),
            need=spec.min_available,
            pack=spec.pack,
            gate=tuple(sorted(spec.min_resources.items())),
        )

    def why_never(self, gang: PendingGang) -> Reason | None:
        """What the empty cluster lacks for the job."""
        for role in gang.roles:
            for resource, amount in role.request.resources:
                if amount and resource not in self._table.rows:
                    # No row is made for it: such names would fill the table.
                    missing = NeverFits(resource, amount, 0, per_task=True)
                    return missing if role.need else None
            self._table.vector(role.request.resources)
        return never_fits((gang,), FreeCapacity(self._table, empty=True))
