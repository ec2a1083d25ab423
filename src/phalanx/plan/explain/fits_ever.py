"""Whether a job could ever start on a set of nodes, before it is submitted."""

from collections.abc import Mapping

from phalanx.core.node import Node
from phalanx.core.reasons import Reason
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

    def why_never(self, spec: JobSpec) -> Reason | None:
        """What the empty cluster lacks for the job."""
        tasks = 0
        roles = []
        for role in spec.roles:
            request = self._translate.request(role)
            self._table.vector(request.resources)
            indices = tuple(range(tasks, tasks + role.replicas))
            roles.append(RoleRequest(role.name, request, indices, role.min))
            tasks += role.replicas
        gang = PendingGang(
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
        )
        return never_fits((gang,), FreeCapacity(self._table, empty=True))
