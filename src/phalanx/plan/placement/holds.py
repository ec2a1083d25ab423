"""Gangs that hold places and wait for more: when none of them could ever get it, some let go."""

from collections.abc import Mapping

from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RunningGang, RunningTask
from phalanx.plan.placement.trial import PlacementTrial, holds, need_of
from phalanx.plan.state.capacity import FreeCapacity, Occupant
from phalanx.plan.state.nodes import Floats, NodeTable
from phalanx.plan.state.running import Occupancy


def deadlocked(
    holders: Mapping[str, PendingGang], empty: FreeCapacity, shares: FairShares
) -> list[PendingGang]:
    """Who has to let go so that one of the others could start, were all else to end.

    The lowest priority goes first, then the latest.
    """
    view = empty.fork()
    table = view.table
    keep = sorted(holders.values(), key=lambda claim: (-claim.priority, claim.created_at))
    occupied = {claim.job: _occupants(claim, view) for claim in keep}
    for claim in keep:
        view.vacate(occupied[claim.job], -1)
    gone: list[PendingGang] = []
    while keep and not any(_could_start(claim, keep, view, shares) for claim in keep):
        last = keep.pop()
        view.vacate(occupied[last.job])
        gone.append(last)
    # Whoever could not even start alone is not to blame on the others.
    return gone if keep and table else []


def holding(claim: PendingGang, table: NodeTable) -> Occupancy:
    """What a gang holds, as if it were a tenant that loses nothing by leaving."""
    parts = {task: part for part in claim.parts for task in part.tasks}
    places = tuple(
        RunningTask(hold.task, parts[hold.task].role, hold.worker, parts[hold.task].ask.resources)
        for hold in claim.held
        if hold.worker in table.index and hold.task in parts
    )
    tenant = RunningGang(
        job=claim.job,
        name=claim.name,
        version=claim.version,
        queue=claim.queue,
        priority=claim.priority,
        created_at=claim.created_at,
        started_at=0,
        places=places,
        holds=True,
    )
    return Occupancy(tenant, table)


def _occupants(claim: PendingGang, view: FreeCapacity) -> list[Occupant]:
    table = view.table
    asks = {task: part.ask for part in claim.parts for task in part.tasks}
    return [
        (table.index[hold.worker], table.vector(asks[hold.task].resources), ())
        for hold in claim.held
        if hold.worker in table.index and hold.task in asks
    ]


def _could_start(
    claim: PendingGang, holders: list[PendingGang], view: FreeCapacity, shares: FairShares
) -> bool:
    trial = PlacementTrial(claim, (view,))
    if not trial.minimum():
        return False
    trial.undo()
    return _limits_allow(claim, holders, shares)


def _limits_allow(claim: PendingGang, holders: list[PendingGang], shares: FairShares) -> bool:
    """Whether the limits let it start beside what the others hold, were all else to end."""
    table = shares.table
    used: dict[str, Floats] = {}
    for each in holders:
        for branch in shares.branches[each.queue].path():
            used[branch.queue.name] = used.get(branch.queue.name, 0.0) + holds(each, table)
    need = need_of(claim, table)
    return all(
        not bool(((used[branch.queue.name] + need > branch.limit) & (need > 0)).any())
        for branch in shares.branches[claim.queue].path()
    )
