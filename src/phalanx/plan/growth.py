"""Growth: elastic gangs get tasks above their minimum from the capacity that is left."""

from itertools import chain

from phalanx.plan.decisions import Reserve
from phalanx.plan.elastic import ElasticGrowth
from phalanx.plan.model import RoleRequest
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.serving.starts import placement


def grow(work: PlanningPass) -> None:
    """Let starting and running gangs grow, and decide all starts of the pass."""
    growing = [
        gang
        for gang in sorted(work.pending.growing.values(), key=lambda gang: gang.job)
        if gang.job not in work.excluded and work.stopped(gang) is None
    ]
    growth = ElasticGrowth(work.order, work.policy, work.now, work.capacity.both)
    running = growth.trials(growing)
    growth.share_out([*chain(*work.starts), *running], lambda *more: _add_tasks(work, *more))
    work.decisions += (Reserve(tuple(map(placement, trials))) for trials in work.starts)
    work.decisions += (Reserve((placement(trial),)) for trial in running if trial.count)


def _add_tasks(work: PlanningPass, trial: PlacementTrial, role: RoleRequest, most: int) -> int:
    """Place at most so many tasks of a role; returns how many. Starts that were reserved after the
    gang was placed must not be delayed either."""
    later = work.reservations.capacities_during(trial.gang.duration)
    trial.continue_on((*work.capacity.both, *later), work.reservations.allowed_nodes())
    before = trial.amounts()
    placed = trial.grow(role, work.headroom(trial.gang.queue).allows(role, most))
    work.use(trial.gang.queue, trial.amounts() - before)
    return placed
