"""What a scenario expects of its outcome, and the differences. Fields that the file omits are not
compared."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from phalanx.core.spec.fields import (
    Field,
    FieldPath,
    as_key,
    distinct,
    integer,
    mapping,
    read_table,
    refusal,
    text,
)
from phalanx.scenario.file_format import by_name, many
from phalanx.scenario.gangs import ScenarioTask
from phalanx.scenario.outcome import ScenarioOutcome
from phalanx.scenario.scenario import Scenario

_count = integer(0, 1_000_000)


class EvictedCount(msgspec.Struct, frozen=True):
    """A number of evicted tasks, where it does not matter which tasks they are."""

    n: int
    among: tuple[str, ...] | None = None
    one_from_each: tuple[tuple[str, ...], ...] | None = None


class Expectation(msgspec.Struct, frozen=True):
    """The expected outcome; None and empty mappings are not compared."""

    placed: tuple[dict[str, int], ...] | None  #: one of these
    pending: tuple[str, ...] | None
    evicted: tuple[tuple[str, ...], ...] | None  #: one of these sets
    evicted_count: EvictedCount | None
    moved: tuple[tuple[str, ...], ...] | None  #: one of these sets of tasks
    nodes_of_tasks: dict[str, str]
    nodes_of_gangs: dict[str, tuple[str, ...]]
    roles: dict[str, int]
    timed_out: tuple[str, ...] | None
    released: tuple[str, ...] | None
    reasons: dict[str, str]


def read_expectation(scenario: Scenario) -> Expectation:
    """What the scenario expects, or `Invalid` with every problem in it."""
    path = FieldPath()
    given: dict[str, Any] = {}
    with path.at("expect"):
        if scenario.expect is None:
            raise refusal("is missing; add what you expect, like {placed: {}, pending: []}")
        given = read_table(scenario.expect, "a mapping, like {placed: {g: 1}}", _EXPECT)
        _check_names(scenario, given)
    path.raise_problems()
    placed = None if given["placed"] is None else (given["placed"], *given["placed_also_ok"])
    tasks, gangs, roles = given["placement"]
    return Expectation(
        placed=placed,
        pending=given["pending"],
        evicted=given["evicted_any_of"],
        evicted_count=given["evicted_count"],
        moved=given["moved_any_of"],
        nodes_of_tasks=tasks,
        nodes_of_gangs=gangs,
        roles=roles,
        timed_out=given["timed_out"],
        released=given["released"],
        reasons=given["reasons"],
    )


def _check_names(scenario: Scenario, given: dict[str, Any]) -> None:
    """Refuse names of gangs that the scenario does not list."""
    path = FieldPath()
    for field in ("placed", "pending", "timed_out", "released", "reasons"):
        for name in given[field] or ():
            if name not in scenario.gangs:
                path.at(field).problem(f"names the gang {name}, which is not listed")
    path.raise_problems()


def differences(scenario: Scenario, expect: Expectation, outcome: ScenarioOutcome) -> Iterator[str]:
    """One sentence for each difference between the outcome and the expectation."""
    if expect.placed is not None and outcome.placed not in expect.placed:
        yield _difference("placed", map(_counts, expect.placed), _counts(outcome.placed))
    yield from _list_differences(expect, outcome)
    if expect.evicted is not None and set(outcome.evicted) not in map(set, expect.evicted):
        yield _difference("evicted", map(_listed, expect.evicted), _listed(outcome.evicted))
    if expect.evicted_count is not None:
        yield from _count_differences(expect.evicted_count, outcome)
    if expect.moved is not None and set(outcome.moved) not in map(set, expect.moved):
        yield _difference("moved", map(_listed, expect.moved), _listed(outcome.moved))
    yield from _placement_differences(scenario, expect, outcome)
    for gang, name in expect.reasons.items():
        reason = outcome.reasons.get(gang)
        if type(reason).__name__ != name:
            got = "no reason" if reason is None else f"{type(reason).__name__} ({reason})"
            yield f"reason of {gang}: expected {name}, got {got}"


def _list_differences(expect: Expectation, outcome: ScenarioOutcome) -> Iterator[str]:
    for what, expected, got in (
        ("pending", expect.pending, outcome.pending),
        ("timed out", expect.timed_out, outcome.timed_out),
        ("released", expect.released, outcome.released),
    ):
        if expected is not None and set(expected) != set(got):
            yield _difference(what, [_listed(expected)], _listed(got))


def _count_differences(expected: EvictedCount, outcome: ScenarioOutcome) -> Iterator[str]:
    got = outcome.evicted
    if len(got) != expected.n:
        tasks = "1 task" if expected.n == 1 else f"{expected.n} tasks"
        yield f"evicted: expected {tasks}, got {len(got)}: {_listed(got)}"
    if expected.among is not None and not set(got) <= set(expected.among):
        yield f"evicted: expected only tasks of {_listed(expected.among)}, got {_listed(got)}"
    for tasks_of_one in expected.one_from_each or ():
        if len(set(got) & set(tasks_of_one)) != 1:
            yield f"evicted: expected one of {_listed(tasks_of_one)}, got {_listed(got)}"


def _placement_differences(
    scenario: Scenario, expect: Expectation, outcome: ScenarioOutcome
) -> Iterator[str]:
    for task, node in expect.nodes_of_tasks.items():
        got = outcome.placement.get(task)
        if got != node:
            yield f"{task}: expected on {node}, got {'no node' if got is None else got}"
    for gang, nodes in expect.nodes_of_gangs.items():
        new = _nodes_of(scenario.gangs[gang].pending, outcome)
        used = [*_nodes_of(scenario.gangs[gang].placed, outcome), *new]
        if not (_match(nodes, used) or _match(nodes, new)):
            yield f"{gang}: expected on {_listed(nodes)}, got {_listed(used)}"
    new_roles = _new_by_role(scenario, outcome)
    roles = {role: new_roles[role] for role in expect.roles}
    if roles != expect.roles:
        yield _difference("roles", [_counts(expect.roles)], _counts(roles))


def _nodes_of(tasks: Iterable[ScenarioTask], outcome: ScenarioOutcome) -> list[str]:
    """The nodes of the tasks that have a place."""
    nodes = (outcome.placement.get(task.entry.name) for task in tasks)
    return [node for node in nodes if node is not None]


def _match(expected: Sequence[str], used: Sequence[str]) -> bool:
    """Whether the nodes are used; how often counts only if a node is named more than once."""
    if len(set(expected)) == len(expected):
        return set(used) == set(expected)
    return Counter(used) == Counter(expected)


def _new_by_role(scenario: Scenario, outcome: ScenarioOutcome) -> Counter[str]:
    """The number of newly placed tasks of each role."""
    tasks = (task for gang in scenario.gangs.values() for _, task in gang.pending)
    return Counter(task.role for task in tasks if task.name in outcome.placement)


def _difference(what: str, expected: Iterable[str], got: str) -> str:
    return f"{what}: expected {' or '.join(expected)}, got {got}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} of {name}" for name, n in sorted(counts.items())) or "nothing"


# Readers

_names = distinct("a list of names", text)
_sets = many("a list of lists of tasks, like [[a, b], [c]]", _names)
_placed = by_name("a mapping of gangs to numbers", _count)


def _alternatives(value: object) -> tuple[dict[str, int], ...]:
    """One mapping of gangs to numbers of tasks, or a list of them."""
    if isinstance(value, list | tuple):
        return many("a list of mappings of gangs to numbers", _placed)(value)
    return (_placed(value),)


def _evicted_count(value: object) -> EvictedCount:
    given = read_table(
        value,
        "{n: 2, from: [a, b, c]}",
        {"n": Field(_count, 1), "from": Field(_names), "one_from_each": Field(_sets)},
    )
    return EvictedCount(given["n"], given["from"], given["one_from_each"])


def _placement(
    value: object,
) -> tuple[dict[str, str], dict[str, tuple[str, ...]], dict[str, int]]:
    """Node of each task, nodes of each gang (given as a list), and number of tasks by role."""
    tasks: dict[str, str] = {}
    gangs: dict[str, tuple[str, ...]] = {}
    roles: dict[str, int] = {}
    path = FieldPath()
    for key, item in mapping(value, "a mapping, like {task: node}").items():
        with path.at(as_key(key)):
            name = text(key)
            if name == "roles":
                roles = by_name("a mapping of roles to numbers", _count)(item)
            elif isinstance(item, list):
                gangs[name] = many("a list of nodes", text)(item)
            else:
                tasks[name] = text(item)
    path.raise_problems()
    return tasks, gangs, roles


_EXPECT = {
    "placed": Field(_placed),
    "placed_also_ok": Field(_alternatives, []),
    "pending": Field(_names),
    "evicted_any_of": Field(_sets),
    "evicted_count": Field(_evicted_count),
    "moved_any_of": Field(_sets),
    "placement": Field(_placement, {}),
    "timed_out": Field(_names),
    "released": Field(_names),
    "reasons": Field(by_name("a mapping of gangs to reasons", text), {}),
}
