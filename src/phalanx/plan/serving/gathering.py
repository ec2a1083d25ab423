"""Gathering: a non-strict gang keeps the places that are free while it waits for the rest."""

from collections.abc import Sequence

from msgspec.structs import replace

from phalanx.core.events import Placement
from phalanx.plan.decisions import Gather
from phalanx.plan.explain.shortage import shortage_of
from phalanx.plan.model import PendingGang
from phalanx.plan.placement.gathered import blocks_itself
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.planning_pass import PlanningPass


def gather(work: PlanningPass, gangs: Sequence[PendingGang]) -> bool:
    """Add free places to those that a non-strict gang has gathered; False if there are none."""
    if len(gangs) > 1 or gangs[0].strict:
        return False
    gang = gangs[0]
    capacities = (*work.capacity.both, *work.reservations.capacities_during(None))
    trial = PlacementTrial(gang, capacities, work.reservations.allowed_nodes(None))
    if not _gather(work, trial):
        return False
    new = tuple(each for each in trial.assignments() if each.task not in trial.gathered)
    work.use(gang, trial.amounts())
    work.reservations.note_change()
    work.decisions.append(Gather(Placement(gang.job, gang.version, new)))
    holding = replace(gang, gathered=trial.assignments())
    work.reasons.explicit[gang.job] = shortage_of((holding,), holding, capacities)
    return True


def _gather(work: PlanningPass, trial: PlacementTrial) -> bool:
    """Place tasks on what is free, but not where the rest of the gang could never start beside
    them; False, and nothing placed, if there is no such place.

    Heuristic: if the best fit is in the way of other tasks, tasks that can go anywhere are kept
    from the nodes that other tasks select.
    """
    for spares_selected_nodes in (False, True):
        if spares_selected_nodes and not trial.spare_selected():
            return False
        if not trial.gather(work.headroom(trial.gang)):
            return False
        if not blocks_itself(replace(trial.gang, gathered=trial.assignments()), work.state.empty):
            return True
        trial.undo()
    return False
