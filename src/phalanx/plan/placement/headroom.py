"""How many more tasks the limits of a queue allow."""

import numpy as np

from phalanx.plan.model import RoleRequest
from phalanx.plan.state.nodes import EPSILON, Floats, NodeTable


class Headroom:
    """Amounts that a queue may still use, by row. Tasks that are placed reduce it."""

    def __init__(self, amounts: Floats, table: NodeTable) -> None:
        self._amounts = amounts.copy()
        self._table = table

    def allows(self, role: RoleRequest, wanted: int) -> int:
        """The number of tasks of the role that the limits allow, at most `wanted`."""
        vector = self._table.vector(role.request.resources)
        allowed = np.floor((self._amounts[vector.rows] + EPSILON) / vector.amounts).min()
        return int(max(0, min(wanted, allowed)))

    def spend(self, role: RoleRequest, count: int) -> None:
        """Reduce the headroom by `count` tasks of the role."""
        vector = self._table.vector(role.request.resources)
        self._amounts[vector.rows] -= vector.amounts * count
