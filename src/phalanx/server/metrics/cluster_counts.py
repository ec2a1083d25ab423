"""Counts of jobs, tasks, workers and usage, taken from the planner's state.

They are counted where the planner runs, not on the event loop; a scrape shows the latest counts.
"""

from collections import Counter

import msgspec

from phalanx.core.array import WAITING, Array
from phalanx.core.gang import Gang
from phalanx.core.model import Phase, Worker
from phalanx.core.states import PLACED, State
from phalanx.plan.decisions import Plan
from phalanx.plan.state.planner_state import PlannerState

_PLACED = tuple(PLACED)


class ClusterCounts(msgspec.Struct, frozen=True):
    jobs: Counter[str]  #: unfinished jobs, by phase
    tasks: Counter[str]  #: their tasks, by state
    workers: Counter[str]  #: by status
    reasons: Counter[str]  #: pending jobs, by reason
    usage: Counter[tuple[str, str]]  #: by (queue, resource), in the unit of its normal form
    capacity: Counter[str]  #: of the workers that are not lost, by resource


def count_cluster(state: PlannerState, plan: Plan) -> ClusterCounts:
    reasons = plan.reasons.tally()
    counts = ClusterCounts(Counter(), Counter(), Counter(), reasons, Counter(), Counter())
    # Most gangs have as many tasks in each state as many others.
    alike: Counter[int] = Counter()
    examples: dict[int, Gang] = {}
    for gang in state.gangs.values():
        if isinstance(gang, Array):
            # Its other elements are jobs of their own.
            counts.jobs[Phase.PENDING] += gang.number_in(WAITING)
            continue
        counts.jobs[gang.job.phase] += 1
        alike[gang.counts] += 1
        examples[gang.counts] = gang
        _add_usage(counts, gang)
    for packed, gangs in alike.items():
        for task_state in State:
            count = examples[packed].count(task_state)
            if count:
                counts.tasks[_shown(task_state)] += gangs * count
    for node in state.nodes.values():
        counts.workers[_status(node.worker)] += 1
        if node.worker.lost_at is None:
            counts.capacity.update(node.worker.resources)
    return counts


def _shown(state: State) -> State:
    """A task without a place is pending, as in every native view."""
    return State.PENDING if state is State.BLOCKED else state


def _status(worker: Worker) -> str:
    if worker.lost_at is not None:
        return "lost"
    if worker.leaving:
        return "leaving"
    return "active" if worker.cordoned is None else "cordoned"


def _add_usage(counts: ClusterCounts, gang: Gang) -> None:
    if gang.is_idle:
        return
    queue, roles = gang.job.spec.queue, gang.job.spec.roles
    placed = Counter({roles[0].name: sum(gang.count(state) for state in _PLACED)})
    if len(roles) > 1:
        placed = Counter(task.role for task in gang.tasks if task.state in PLACED)
    for role in roles:
        for resource, amount in role.resources.items():
            if placed[role.name]:
                counts.usage[queue, resource] += placed[role.name] * amount
