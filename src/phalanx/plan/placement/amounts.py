"""Resource amounts of a pending gang, by row of the node table: its minimum, its gathered places,
and all of its pending tasks."""

from collections.abc import Iterable, Mapping

import numpy as np

from phalanx.core.model import Assignment
from phalanx.core.node import GPU
from phalanx.plan.model import PendingGang, RoleRequest
from phalanx.plan.state.capacity import Occupant
from phalanx.plan.state.nodes import Floats, NodeTable


def minimum_amounts(gang: PendingGang, table: NodeTable) -> Floats:
    """Amounts that the gang needs to start, besides its gathered places.

    Where only the gang's total minimum asks for a task, the task that is easiest to place counts,
    so the result is a lower bound. It may be shared, and is not to be changed.
    """
    if len(gang.roles) == 1 and not gang.gathered:
        role = gang.roles[0]
        tasks = max(role.need, min(gang.need, len(role.tasks)))
        return table.amounts(role.request, tasks)
    amounts = np.zeros(len(table.rows))
    gathered = _gathered_counts(gang)
    rest = gang.need - sum(max(role.need, gathered[role.name]) for role in gang.roles)
    for role in sorted(gang.roles, key=hardness):
        vector = table.vector(role.request.resources)
        floor = max(role.need, gathered[role.name])
        more = max(0, min(rest, len(role.tasks) - floor))
        rest -= more
        amounts[vector.rows] += vector.amounts * (floor + more - gathered[role.name])
    return amounts


def gathered_amounts(gang: PendingGang, table: NodeTable) -> Floats:
    """Amounts of the places that a non-strict gang has gathered."""
    amounts = np.zeros(len(table.rows))
    counts = _gathered_counts(gang)
    for role in gang.roles:
        vector = table.vector(role.request.resources)
        amounts[vector.rows] += vector.amounts * counts[role.name]
    return amounts


def requested_amounts(gang: PendingGang, table: NodeTable) -> Floats:
    """Amounts of all pending tasks of the gang."""
    amounts = np.zeros(len(table.rows))
    for role in gang.roles:
        vector = table.vector(role.request.resources)
        amounts[vector.rows] += vector.amounts * len(role.tasks)
    return amounts


def role_amounts(role: RoleRequest, count: int, table: NodeTable) -> Floats:
    """Amounts of so many tasks of a role."""
    amounts = np.zeros(len(table.rows))
    vector = table.vector(role.request.resources)
    amounts[vector.rows] += vector.amounts * count
    return amounts


def amounts_by_row(resources: Mapping[str, int], table: NodeTable) -> Floats:
    """Amounts given by resource, as an array by row."""
    amounts = np.zeros(len(table.rows))
    for resource, amount in resources.items():
        amounts[table.rows[resource]] = amount
    return amounts


def _gathered_counts(gang: PendingGang) -> dict[str, int]:
    """By role: the number of its tasks that have a gathered place."""
    gathered = {place.task for place in gang.gathered}
    return {role.name: sum(task in gathered for task in role.tasks) for role in gang.roles}


def hardness(role: RoleRequest) -> tuple[int, int, int]:
    """Sort key of roles: GPUs per task, then conditions on the node, then all resources per task.

    Heuristic: a role with a larger key fits on fewer nodes, so it is placed first.
    """
    resources = dict(role.request.resources)
    return (resources.get(GPU, 0), role.request.conditions, sum(resources.values()))


def occupants_of(
    gang: PendingGang, places: Iterable[Assignment], table: NodeTable
) -> list[Occupant]:
    """What tasks of a gang occupy at these places, where both are known."""
    requests = {task: role.request for role in gang.roles for task in role.tasks}
    return [
        (table.index[place.worker], table.vector(request.resources), (), request.traits)
        for place in places
        if place.worker in table.index and (request := requests.get(place.task)) is not None
    ]
