"""Counting what there is: a pure look over the planner state, made beside the planner.

Nothing is counted on the event loop; a scrape finds what the last look found.
"""

from collections import Counter

import msgspec

from phalanx.core.gang import Gang
from phalanx.core.states import PLACED, State
from phalanx.plan.decisions import Plan
from phalanx.plan.state.planner_state import PlannerState

_PLACED = tuple(PLACED)


class Census(msgspec.Struct, frozen=True):
    jobs: Counter[str]  #: by phase
    tasks: Counter[str]  #: by state
    workers: Counter[str]  #: open, cordoned, lost
    reasons: Counter[str]  #: why jobs wait
    usage: Counter[tuple[str, str]]  #: by (queue, resource), in the unit of its normal form
    capacity: Counter[str]  #: of the workers that are there, by resource


def take(state: PlannerState, made: Plan) -> Census:
    reasons = made.reasons.tally()
    census = Census(Counter(), Counter(), Counter(), reasons, Counter(), Counter())
    for gang in state.gangs.values():
        census.jobs[gang.job.phase] += 1
        for task_state in State:
            count = gang.count(task_state)
            if count:
                census.tasks[task_state] += count
        _add_usage(census, gang)
    for node in state.nodes.values():
        worker = node.worker
        lost = worker.lost_at is not None
        census.workers["lost" if lost else "cordoned" if worker.cordoned else "open"] += 1
        if not lost:
            census.capacity.update(worker.resources)
    return census


def _add_usage(census: Census, gang: Gang) -> None:
    if gang.is_idle:
        return
    queue, roles = gang.job.spec.queue, gang.job.spec.roles
    placed = Counter({roles[0].name: sum(gang.count(state) for state in _PLACED)})
    if len(roles) > 1:
        placed = Counter(task.role for task in gang.tasks if task.state in PLACED)
    for role in roles:
        for resource, amount in role.resources.items():
            if placed[role.name]:
                census.usage[queue, resource] += placed[role.name] * amount
