"""Places gathered by non-strict gangs: how they are evicted, and how a deadlock is broken."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RunningGang, RunningTask
from phalanx.plan.placement.amounts import gathered_amounts, minimum_amounts, occupants_of
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import Floats, NodeTable
from phalanx.plan.state.running import Occupancy


def deadlocked(
    gangs: Iterable[PendingGang], empty: FreeCapacity, shares: FairShares
) -> list[PendingGang]:
    """The gangs that have to release their gathered places so that they or another gang can start.

    There is a deadlock if none of the gangs could start even after all other work has ended.
    Heuristic: the lowest priority releases first, then the newest gang. The list is empty if no
    gang could start even alone, because then the gathered places are not the obstacle.
    """
    gangs = list(gangs)
    if blocked := [gang for gang in gangs if blocks_itself(gang, empty)]:
        return blocked
    free = empty.fork()
    keeping = sorted(gangs, key=lambda gang: (-gang.priority, gang.created_at, gang.name))
    occupants = {gang.job: occupants_of(gang, gang.gathered, free.table) for gang in keeping}
    for gang in keeping:
        free.vacate(occupants[gang.job], -1)
    releasing: list[PendingGang] = []
    while keeping and not any(_could_start(gang, keeping, free, shares) for gang in keeping):
        last = keeping.pop()
        free.vacate(occupants[last.job])
        releasing.append(last)
    return releasing if keeping else []


def blocks_itself(gang: PendingGang, empty: FreeCapacity) -> bool:
    """Whether the gang could start on empty nodes, but not beside the places it has gathered."""
    if not gang.gathered or not _has_unlike_tasks(gang):
        return False
    free = empty.fork()
    occupants = occupants_of(gang, gang.gathered, free.table)
    free.vacate(occupants, -1)
    if PlacementTrial(gang, (free,)).place_minimum():
        return False
    free.vacate(occupants)
    return PlacementTrial(replace(gang, gathered=()), (free,)).place_minimum()


def _has_unlike_tasks(gang: PendingGang) -> bool:
    """Whether the place of one task may be one that another task needs. Tasks that are alike have
    as many places left as before, except for those that were gathered."""
    has_traits = any(role.request.traits is not None for role in gang.roles)
    return len(gang.roles) > 1 or gang.pack is not None or has_traits


def gathered_occupancy(gang: PendingGang, table: NodeTable) -> Occupancy:
    """The gathered places as an occupancy that loses no work when it is evicted."""
    roles = {task: role for role in gang.roles for task in role.tasks}
    places = tuple(
        RunningTask(
            *(place.task, role.name, place.worker, role.request.resources),
            traits=role.request.traits,
        )
        for place in gang.gathered
        if place.worker in table.index and (role := roles.get(place.task)) is not None
    )
    return Occupancy(
        RunningGang(
            job=gang.job,
            name=gang.name,
            version=gang.version,
            queue=gang.queue,
            priority=gang.priority,
            created_at=gang.created_at,
            started_at=0,
            tasks=places,
            only_gathered=True,
            size=gang.size,
            user=gang.user,
        ),
        table,
    )


def _could_start(
    gang: PendingGang, gathering: Sequence[PendingGang], free: FreeCapacity, shares: FairShares
) -> bool:
    """Whether the gang fits beside the places that all gathering gangs have."""
    trial = PlacementTrial(gang, (free,))
    if not trial.place_minimum():
        return False
    trial.undo()
    return _limits_allow(gang, gathering, shares)


def _limits_allow(gang: PendingGang, gathering: Sequence[PendingGang], shares: FairShares) -> bool:
    """Whether the limits of its queues allow the gang beside all gathered places."""
    table = shares.table
    used: dict[str, Floats] = {}
    for each in gathering:
        for branch in shares.branches[each.queue].path():
            name = branch.queue.name
            used[name] = used.get(name, 0.0) + gathered_amounts(each, table)
    need = minimum_amounts(gang, table)
    return all(
        not bool(((used[branch.queue.name] + need > branch.limit) & (need > 0)).any())
        for branch in shares.branches[gang.queue].path()
    )
