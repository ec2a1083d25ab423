"""The outcome of a plan once it has settled, by the names of gangs and tasks in the scenario.

Settled means: all victims have stopped and are pending again, and the freed capacity is used by the
gangs it was kept for.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from phalanx.core.events import Placement
from phalanx.core.reasons import Reason
from phalanx.plan.decisions import (
    Decision,
    Evict,
    Gather,
    Plan,
    PlannedVictim,
    ReleaseGathered,
    Reserve,
    ReservedStart,
    TimeOut,
)
from phalanx.scenario.scenario import Scenario

T = TypeVar("T")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision of the plan."""

    decision: str  #: `Reserve`, `Evict`, `Gather`, `ReleaseGathered` or `TimeOut`
    gangs: tuple[str, ...]  #: the gangs it is about
    places: dict[str, dict[str, str]] = {}  #: gang → task → node
    victims: dict[str, tuple[str, ...]] = {}  #: gang → tasks
    lost_gpu_s: float = 0.0  #: GPU-seconds of work that the victims lose
    moves: dict[str, dict[str, str]] = {}  #: gang that is moved → task → its new node


class ScenarioOutcome(msgspec.Struct, frozen=True):
    """The decisions of a plan and the state after them."""

    name: str  #: of the scenario
    decisions: tuple[Step, ...]
    reserved_starts: tuple[ReservedStart, ...]
    placed: dict[str, int]  #: gang → newly placed tasks
    pending: tuple[str, ...]  #: gangs of which nothing new was placed
    evicted: tuple[str, ...]  #: tasks
    moved: tuple[str, ...]  #: tasks of gangs that are moved to other nodes
    placement: dict[str, str]  #: every task that has a place → its node
    gathered: dict[str, dict[str, str]]  #: pending gang → task → the node of its gathered place
    timed_out: tuple[str, ...]
    released: tuple[str, ...]  #: gangs whose gathered places were released
    reasons: dict[str, Reason]


def settle(scenario: Scenario, plan: Plan) -> ScenarioOutcome:
    """The outcome after every decision of the plan."""
    steps = tuple(_step(scenario, decision) for decision in plan.decisions)
    starts = [step.places for step in steps if step.decision in ("Reserve", "Evict")]
    placed: dict[str, int] = {}
    for gang, places in _items(starts):
        placed[gang] = placed.get(gang, 0) + len(places)
    victims = _items(step.victims for step in steps)
    moves = _items(step.moves for step in steps)
    moved = {task for _, places in moves for task in places}
    evicted = {task for _, tasks in victims for task in tasks} - moved
    placement = {name: node for name, node in _running(scenario).items() if name not in evicted}
    for _, places in (*_items(starts), *moves):
        placement |= places
    released = _gangs_with(steps, "ReleaseGathered")
    timed_out = _gangs_with(steps, "TimeOut")
    settled = {*placed, *timed_out, *(gang for gang, _ in victims)}
    gangs = scenario.gangs.values()
    return ScenarioOutcome(
        name=scenario.name,
        decisions=steps,
        reserved_starts=plan.reserved_starts,
        placed=placed,
        pending=tuple(g.name for g in gangs if g.pending and g.name not in settled),
        evicted=tuple(sorted(evicted)),
        moved=tuple(sorted(moved)),
        placement=placement,
        gathered=_gathered(scenario, steps, {*placed, *released, *timed_out}),
        timed_out=timed_out,
        released=released,
        reasons=dict(plan.reasons),
    )


def _step(scenario: Scenario, decision: Decision) -> Step:
    """A decision, by the names of gangs and tasks."""
    name = type(decision).__name__
    match decision:
        case Reserve(placements):
            return Step(name, _jobs(placements), _places(scenario, placements))
        case Evict(placements, victims, moves):
            return Step(
                name,
                _jobs(placements),
                _places(scenario, placements),
                {victim.job: _evicted_tasks(scenario, victim) for victim in victims},
                sum(victim.lost for victim in victims),
                _places(scenario, moves),
            )
        case Gather(placement):
            return Step(name, (placement.job,), _places(scenario, (placement,)))
        case ReleaseGathered(job) | TimeOut(job):
            return Step(name, (job,))


def _jobs(placements: Sequence[Placement]) -> tuple[str, ...]:
    return tuple(placement.job for placement in placements)


def _places(scenario: Scenario, placements: Iterable[Placement]) -> dict[str, dict[str, str]]:
    """Gang → task → node."""
    return {
        placement.job: {
            scenario.task(placement.job, assignment.task).name: assignment.worker
            for assignment in placement.assignments
        }
        for placement in placements
    }


def _evicted_tasks(scenario: Scenario, victim: PlannedVictim) -> tuple[str, ...]:
    """The names of the tasks that a victim loses."""
    placed = scenario.gangs[victim.job].placed
    return tuple(task.name for index, task in placed if not victim.tasks or index in victim.tasks)


def _items(mappings: Iterable[dict[str, T]]) -> list[tuple[str, T]]:
    return [item for mapping in mappings for item in mapping.items()]


def _gangs_with(steps: Iterable[Step], decision: str) -> tuple[str, ...]:
    """The gangs that a kind of decision is about."""
    return tuple(gang for step in steps if step.decision == decision for gang in step.gangs)


def _running(scenario: Scenario) -> dict[str, str]:
    """Task → node of all running tasks in the file."""
    return {
        task.name: task.node or "" for gang in scenario.gangs.values() for _, task in gang.placed
    }


def _gathered(
    scenario: Scenario, steps: Iterable[Step], excluded: set[str]
) -> dict[str, dict[str, str]]:
    """Gathered places of pending gangs: those in the file, and those of the plan."""
    gathered: dict[str, dict[str, str]] = {}
    for gang in scenario.gangs.values():
        for _, task in gang.pending:
            if task.held is not None:
                gathered.setdefault(gang.name, {})[task.name] = task.held
    for step in steps:
        if step.decision == "Gather":
            for name, places in step.places.items():
                gathered.setdefault(name, {}).update(places)
    return {name: places for name, places in gathered.items() if name not in excluded}
