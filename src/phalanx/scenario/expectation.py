"""What a scenario expects of its outcome, and what differs. Nothing is expected of what is not
named."""

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
from phalanx.scenario.outcome import ScenarioOutcome
from phalanx.scenario.scenario import Scenario, ScenarioTask

_count = integer(0, 1_000_000)


class EvictedCount(msgspec.Struct, frozen=True):
    """So many victims, where it does not matter which."""

    n: int
    among: tuple[str, ...] | None = None
    one_from_each: tuple[tuple[str, ...], ...] | None = None


class Expectation(msgspec.Struct, frozen=True):
    placed: tuple[dict[str, int], ...] | None  #: any of these
    pending: tuple[str, ...] | None
    evicted: tuple[tuple[str, ...], ...] | None  #: any of these sets
    evicted_count: EvictedCount | None
    moved: tuple[tuple[str, ...], ...] | None
    nodes_of_tasks: dict[str, str]
    nodes_of_gangs: dict[str, tuple[str, ...]]
    roles: dict[str, int]
    timed_out: tuple[str, ...] | None
    released: tuple[str, ...] | None
    reasons: dict[str, str]


def read_expectation(scenario: Scenario) -> Expectation:
    """What the scenario expects, or `Invalid`."""
    place = FieldPath()
    given: dict[str, Any] = {}
    with place.at("expect"):
        if scenario.expect is None:
            raise refusal("is missing; say what is expected, like {placed: {}, pending: []}")
        given = read_table(scenario.expect, "a mapping, like {placed: {g: 1}}", _EXPECT)
        _check_names(scenario, given)
    place.raise_problems()
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
    """A misspelt gang would be expected in vain."""
    place = FieldPath()
    for field in ("placed", "pending", "timed_out", "released", "reasons"):
        for name in given[field] or ():
            if name not in scenario.gangs:
                place.at(field).problem(f"names the gang {name}, which is not listed")
    place.raise_problems()


def differences(scenario: Scenario, expect: Expectation, outcome: ScenarioOutcome) -> Iterator[str]:
    """Each thing that is not as it was expected, in words."""
    if expect.placed is not None and outcome.placed not in expect.placed:
        yield _differs("placed", map(_counts, expect.placed), _counts(outcome.placed))
    yield from _lists(expect, outcome)
    if expect.evicted is not None and set(outcome.evicted) not in map(set, expect.evicted):
        yield _differs("evicted", map(_listed, expect.evicted), _listed(outcome.evicted))
    if expect.evicted_count is not None:
        yield from _count_differs(expect.evicted_count, outcome)
    # Running work is not moved.
    if expect.moved is not None and () not in expect.moved:
        yield _differs("moved", map(_listed, expect.moved), _listed(()))
    yield from _places_differ(scenario, expect, outcome)
    for gang, name in expect.reasons.items():
        reason = outcome.reasons.get(gang)
        if type(reason).__name__ != name:
            told = "no reason" if reason is None else f"{type(reason).__name__} ({reason})"
            yield f"the reason of {gang}: expected {name}, got {told}"


def _lists(expect: Expectation, outcome: ScenarioOutcome) -> Iterator[str]:
    for word, wanted, got in (
        ("pending", expect.pending, outcome.pending),
        ("timed out", expect.timed_out, outcome.timed_out),
        ("released", expect.released, outcome.released),
    ):
        if wanted is not None and set(wanted) != set(got):
            yield _differs(word, [_listed(wanted)], _listed(got))


def _count_differs(wanted: EvictedCount, outcome: ScenarioOutcome) -> Iterator[str]:
    got = outcome.evicted
    if len(got) != wanted.n:
        yield f"evicted: expected {wanted.n} tasks, got {len(got)}: {_listed(got)}"
    if wanted.among is not None and not set(got) <= set(wanted.among):
        yield f"evicted: expected only from {_listed(wanted.among)}, got {_listed(got)}"
    for some in wanted.one_from_each or ():
        if len(set(got) & set(some)) != 1:
            yield f"evicted: expected one of {_listed(some)}, got {_listed(got)}"


def _places_differ(
    scenario: Scenario, expect: Expectation, outcome: ScenarioOutcome
) -> Iterator[str]:
    for task, node in expect.nodes_of_tasks.items():
        got = outcome.placement.get(task)
        if got != node:
            yield f"{task}: expected on {node}, got {'no place' if got is None else got}"
    for gang, nodes in expect.nodes_of_gangs.items():
        new = _nodes_of(scenario.gangs[gang].waiting, outcome)
        used = [*_nodes_of(scenario.gangs[gang].placed, outcome), *new]
        if not (_are_same(nodes, used) or _are_same(nodes, new)):
            yield f"{gang}: expected on {_listed(nodes)}, got {_listed(used)}"
    new_roles = _new_by_role(scenario, outcome)
    roles = {role: new_roles[role] for role in expect.roles}
    if roles != expect.roles:
        yield _differs("roles", [_counts(expect.roles)], _counts(roles))


def _nodes_of(members: Iterable[ScenarioTask], outcome: ScenarioOutcome) -> list[str]:
    nodes = (outcome.placement.get(member.form.name) for member in members)
    return [node for node in nodes if node is not None]


def _are_same(nodes: Sequence[str], used: Sequence[str]) -> bool:
    """Whether these nodes are used, each as often as it is named if one is named again."""
    if len(set(nodes)) == len(nodes):
        return set(used) == set(nodes)
    return Counter(used) == Counter(nodes)


def _new_by_role(scenario: Scenario, outcome: ScenarioOutcome) -> Counter[str]:
    members = (member for gang in scenario.gangs.values() for member in gang.waiting)
    return Counter(m.form.role for m in members if m.form.name in outcome.placement)


def _differs(what: str, wanted: Any, got: str) -> str:
    return f"{what}: expected {' or '.join(wanted)}, got {got}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nobody"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} of {name}" for name, n in sorted(counts.items())) or "nothing"


# Readers

_names = distinct("a list of names", text)
_sets = many("a list of lists of tasks, like [[a, b], [c]]", _names)
_placed = by_name("a mapping of gangs to numbers", _count)


def _alternatives(value: object) -> tuple[dict[str, int], ...]:
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
    """Nodes by task, nodes by gang, and numbers by role: a list of nodes is of a gang."""
    tasks: dict[str, str] = {}
    gangs: dict[str, tuple[str, ...]] = {}
    roles: dict[str, int] = {}
    place = FieldPath()
    for key, item in mapping(value, "a mapping, like {task: node}").items():
        with place.at(as_key(key)):
            name = text(key)
            if name == "roles":
                roles = by_name("a mapping of roles to numbers", _count)(item)
            elif isinstance(item, list):
                gangs[name] = many("a list of nodes", text)(item)
            else:
                tasks[name] = text(item)
    place.raise_problems()
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
