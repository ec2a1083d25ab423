"""Whether a job that nobody has submitted yet could ever start on these nodes."""

from collections.abc import Mapping

from phalanx.core.node import Node
from phalanx.core.reasons import Reason
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import JobSpec
from phalanx.plan import why
from phalanx.plan.model import Claim, Part
from phalanx.plan.nodes import NodeTable
from phalanx.plan.translate import Translator, machine_of
from phalanx.plan.view import View


class Fitting:
    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._table = NodeTable()
        self._translate = Translator(CoreSettings())
        for name, node in nodes.items():
            self._table.put(name, machine_of(node))

    def why_never(self, spec: JobSpec) -> Reason | None:
        """What the empty cluster lacks for it."""
        tasks = 0
        parts = []
        for role in spec.roles:
            ask = self._translate.ask(role)
            self._table.vector(ask.resources)
            indices = tuple(range(tasks, tasks + role.replicas))
            parts.append(Part(role.name, ask, indices, role.min))
            tasks += role.replicas
        claim = Claim(
            job="",
            name="",
            version=0,
            queue=spec.queue,
            priority=spec.priority,
            created_at=0,
            size=tasks,
            parts=tuple(parts),
            need=spec.min_available,
            pack=spec.pack,
        )
        return why.never((claim,), View(self._table, empty=True))
