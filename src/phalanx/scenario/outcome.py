"""What a plan comes to once it has settled: victims have stopped and wait again, and the room they
left is used by those it was made for. In the words of the scenario: gangs and tasks by name."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from phalanx.core.events import Placement
from phalanx.core.reasons import Reason
from phalanx.plan.decisions import (
    Decision,
    Evict,
    Hold,
    LetGo,
    Plan,
    PlannedVictim,
    Reserve,
    ReservedStart,
    TimeOut,
)
from phalanx.scenario.scenario import Scenario

T = TypeVar("T")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision in the words of the scenario."""

    decision: str  #: `Reserve`, `Evict`, `Hold`, `LetGo` or `TimeOut`
    gangs: tuple[str, ...]  #: whom it is about
    places: dict[str, dict[str, str]] = {}  #: gang → task → node
    victims: dict[str, tuple[str, ...]] = {}  #: gang → tasks
    lost_gpu_s: float = 0.0  #: what the victims lose


class ScenarioOutcome(msgspec.Struct, frozen=True):
    name: str  #: of the scenario
    decisions: tuple[Step, ...]
    heads: tuple[ReservedStart, ...]
    placed: dict[str, int]  #: gang → newly placed tasks
    pending: tuple[str, ...]  #: gangs of which nothing new was placed
    evicted: tuple[str, ...]  #: tasks
    placement: dict[str, str]  #: every task that has a place → its node
    held: dict[str, dict[str, str]]  #: gang → task → the node where its place is kept
    timed_out: tuple[str, ...]
    released: tuple[str, ...]  #: gangs whose holds were given up
    reasons: dict[str, Reason]


def settle(scenario: Scenario, plan: Plan) -> ScenarioOutcome:
    """The state after every decision of the plan."""
    steps = tuple(_step(scenario, decision) for decision in plan.decisions)
    starts = [step.places for step in steps if step.decision in ("Reserve", "Evict")]
    placed: dict[str, int] = {}
    for gang, places in _items(starts):
        placed[gang] = placed.get(gang, 0) + len(places)
    victims = _items(step.victims for step in steps)
    evicted = {task for _, tasks in victims for task in tasks}
    here = {name: node for name, node in _running(scenario).items() if name not in evicted}
    for _, places in _items(starts):
        here |= places
    released = _named(steps, "LetGo")
    timed_out = _named(steps, "TimeOut")
    gone = {*placed, *timed_out, *(gang for gang, _ in victims)}
    return ScenarioOutcome(
        name=scenario.name,
        decisions=steps,
        heads=plan.reserved_starts,
        placed=placed,
        pending=tuple(g.name for g in scenario.gangs.values() if g.waiting and g.name not in gone),
        evicted=tuple(sorted(evicted)),
        placement=here,
        held=_held(scenario, steps, {*placed, *released, *timed_out}),
        timed_out=timed_out,
        released=released,
        reasons=dict(plan.reasons),
    )


def _step(scenario: Scenario, decision: Decision) -> Step:
    word = type(decision).__name__
    match decision:
        case Reserve(placements):
            return Step(word, _jobs(placements), _places(scenario, placements))
        case Evict(placements, victims):
            return Step(
                word,
                _jobs(placements),
                _places(scenario, placements),
                {victim.job: _leaving(scenario, victim) for victim in victims},
                sum(victim.lost for victim in victims),
            )
        case Hold(placement):
            return Step(word, (placement.job,), _places(scenario, (placement,)))
        case LetGo(job) | TimeOut(job):
            return Step(word, (job,))


def _jobs(placements: Sequence[Placement]) -> tuple[str, ...]:
    return tuple(placement.job for placement in placements)


def _places(scenario: Scenario, placements: Iterable[Placement]) -> dict[str, dict[str, str]]:
    return {
        placement.job: {
            scenario.task(placement.job, assignment.task).name: assignment.worker
            for assignment in placement.assignments
        }
        for placement in placements
    }


def _leaving(scenario: Scenario, victim: PlannedVictim) -> tuple[str, ...]:
    placed = scenario.gangs[victim.job].placed
    return tuple(m.form.name for m in placed if not victim.tasks or m.number in victim.tasks)


def _items(mappings: Iterable[dict[str, T]]) -> list[tuple[str, T]]:
    return [item for mapping in mappings for item in mapping.items()]


def _named(steps: Iterable[Step], decision: str) -> tuple[str, ...]:
    return tuple(gang for step in steps if step.decision == decision for gang in step.gangs)


def _running(scenario: Scenario) -> dict[str, str]:
    return {
        member.form.name: member.form.node or ""
        for gang in scenario.gangs.values()
        for member in gang.placed
    }


def _held(scenario: Scenario, steps: Iterable[Step], gone: set[str]) -> dict[str, dict[str, str]]:
    """What is kept for those who still wait: what was held before, and what is held now."""
    held: dict[str, dict[str, str]] = {}
    for gang in scenario.gangs.values():
        for member in gang.waiting:
            if member.form.held is not None:
                held.setdefault(gang.name, {})[member.form.name] = member.form.held
    for step in steps:
        if step.decision == "Hold":
            for gang_name, places in step.places.items():
                held.setdefault(gang_name, {}).update(places)
    return {name: places for name, places in held.items() if name not in gone}
