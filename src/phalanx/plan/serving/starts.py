"""Starting gangs: their whole minimum, within all limits, and without delaying a reserved start."""

from collections.abc import Sequence

from phalanx.core.events import Placement
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import is_simple
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.placement.trial import PlacementTrial, place_all, undo_all
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.state.nodes import Floats


def start(work: PlanningPass, gangs: Sequence[PendingGang]) -> bool:
    """Place a gang or a group now; False, and nothing changed, if it cannot start."""
    if work.binding_limit(minimum_needs(work, gangs)) is not None:
        return False
    if len(gangs) == 1 and not _may_fit(work, gangs[0]):
        return False
    trials = place_all([_trial(work, gang) for gang in gangs])
    if trials is None:
        return False
    # Where a minimum is over several roles, the tasks that were placed may take more than it.
    taken = [(trial.gang.queue, trial.amounts()) for trial in trials]
    if work.binding_limit(taken) is not None:
        undo_all(trials)
        return False
    work.starts.append(trials)
    for trial, (_, amounts) in zip(trials, taken, strict=True):
        work.search.exclude(trial.gang.job)
        work.use(trial.gang, amounts)
        work.reservations.add_started(trial.gang, trial.occupants())
    return True


def minimum_needs(work: PlanningPass, gangs: Sequence[PendingGang]) -> list[tuple[str, Floats]]:
    """The queue and the minimum of each gang."""
    return [(gang.queue, minimum_amounts(gang, work.table)) for gang in gangs]


def _may_fit(work: PlanningPass, gang: PendingGang) -> bool:
    """Whether enough tasks of its first role fit anywhere. Cheaper than a trial."""
    role = gang.roles[0]
    needed = role.need or (gang.need if len(gang.roles) == 1 else 0)
    if not work.capacity.may_fit(role.request, needed - len(gang.gathered)):
        return False
    return not is_simple(gang) or work.reservations.fits_beside(gang)


def _trial(work: PlanningPass, gang: PendingGang) -> PlacementTrial:
    later = work.reservations.capacities_during(gang.duration)
    allowed = work.reservations.allowed_nodes(gang.duration)
    return PlacementTrial(gang, (*work.capacity.both, *later), allowed)


def placement(trial: PlacementTrial) -> Placement:
    return Placement(trial.gang.job, trial.gang.version, trial.assignments())
