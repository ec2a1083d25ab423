"""Whether a job that nobody has submitted yet could ever start on these nodes."""

from collections.abc import Mapping

from phalanx.core.node import Node
from phalanx.core.reasons import Reason
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.plan.explain import shortage
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

    def why_never(self, spec: JobSpec) -> Reason | None:
        """What the empty cluster lacks for it."""
        tasks = 0
        parts = []
        for role in spec.roles:
            ask = self._translate.request(role)
            self._table.vector(ask.resources)
            indices = tuple(range(tasks, tasks + role.replicas))
            parts.append(RoleRequest(role.name, ask, indices, role.min))
            tasks += role.replicas
        claim = PendingGang(
            job="",
            name="",
            version=0,
            queue=spec.queue,
            priority=spec.priority,
            created_at=0,
            size=tasks,
            roles=tuple(parts),
            need=spec.min_available,
            pack=spec.pack,
        )
        return shortage.never((claim,), FreeCapacity(self._table, empty=True))
