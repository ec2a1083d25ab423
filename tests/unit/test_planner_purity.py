"""Planning changes nothing: properties of `plan`, `fork` and `update`, tried on many clusters."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.test_planner_properties import NOW, World, worlds

from phalanx.core.model import Queue
from phalanx.core.reasons import OnHold
from phalanx.core.time_units import MINUTE, SECOND
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Plan
from phalanx.plan.model import PendingGang
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

LATER = NOW + 20 * MINUTE
TIMES = st.sampled_from([NOW - 20 * MINUTE, NOW - SECOND, NOW, NOW + SECOND, LATER])
MAYBE_TIMES = st.one_of(st.none(), TIMES)
BACKOFFS = st.one_of(st.just(0), TIMES)
HOLDS = st.sampled_from([None, None, None, OnHold()])
KINDS = st.sampled_from(["put", "remove", "end", "node", "queue"])
RESOURCES, ZONES = st.sampled_from(["gpu", "disk"]), st.sampled_from("ab")
CLOSED = st.sampled_from(["", "cordoned", "lost"])
WORLDS = worlds()
Change = Callable[[PlannerState], None]


@st.composite
def varied_worlds(draw: st.DrawFn) -> World:
    """Worlds with gangs that back off, starve, expire, are on hold, or start together."""
    world: World = draw(WORLDS)
    gangs = {job: draw(variants(gang)) for job, gang in world.pending.items()}
    names = [gang.name for gang in gangs.values()]
    if len(names) > 1 and draw(st.booleans()):
        pair = dict(zip(names[:2], names[1::-1], strict=True))
        gangs = {
            job: replace(gang, group=(pair[gang.name],)) if gang.name in pair else gang
            for job, gang in gangs.items()
        }
    return world._replace(pending=gangs)


@st.composite
def variants(draw: st.DrawFn, gang: PendingGang) -> PendingGang:
    return replace(
        gang,
        not_before=draw(BACKOFFS),
        since=draw(MAYBE_TIMES),
        expires_at=draw(MAYBE_TIMES),
        ineligible=draw(HOLDS),
        priority=draw(st.integers(0, 2)),
        strict=draw(st.booleans()),
    )


@st.composite
def changes(draw: st.DrawFn, world: World) -> list[Change]:
    """Changes of a state of that world. The nodes stay the same nodes."""
    return [draw(a_change(world)) for _ in range(draw(st.integers(1, 5)))]


@st.composite
def a_change(draw: st.DrawFn, world: World) -> Change:
    kind = draw(KINDS)
    gangs, running = list(world.pending.values()), list(world.running)
    if kind == "put" and gangs:
        gang = draw(st.sampled_from(gangs).flatmap(variants))
        return lambda state: state.put_pending(gang)
    if kind == "remove" and gangs:
        job = draw(st.sampled_from(gangs)).job
        return lambda state: state.remove_pending(job)
    if kind == "end" and running:
        ended = draw(st.sampled_from(running))
        return lambda state: state.remove_running(ended)
    if kind == "queue":
        name, weight = draw(st.sampled_from(list(world.queues))), draw(st.integers(0, 3))
        changed = {**world.queues, name: replace(world.queues[name], weight=weight)}
        return lambda state: state.set_queues(changed)
    name = draw(st.sampled_from(list(world.nodes)))
    spec = NodeSpec(
        {"gpu": draw(st.integers(0, 8)) * 1000, draw(RESOURCES): 1000},
        {},
        {"zone": draw(ZONES)},
        closed=draw(CLOSED),
    )
    return lambda state: state.put_node(name, spec)


VARIED_WORLDS = varied_worlds()


@st.composite
def worlds_and_changes(draw: st.DrawFn) -> tuple[World, list[Change]]:
    world = draw(VARIED_WORLDS)
    return world, draw(changes(world))


def changed(state: PlannerState, some: list[Change]) -> PlannerState:
    for change in some:
        change(state)
    return state


def whole(made: Plan) -> tuple[object, ...]:
    """A plan as plain values, with everything that is only computed when it is asked for."""
    reasons = dict(made.reasons)
    assert len(made.reasons) == len(reasons)
    assert sum(made.reasons.tally().values()) == len(reasons)
    return made.at, made.decisions, reasons, made.reserved_starts, made.cursor


@settings(max_examples=100)
@given(varied_worlds(), TIMES)
def test_planning_twice_gives_the_same_plan(world: World, now: int) -> None:
    state = world.state()
    first = plan(state, now)
    assert whole(plan(state, now)) == whole(first) == whole(plan(world.state(), now))


@settings(max_examples=100)
@given(varied_worlds(), st.lists(TIMES, min_size=1, max_size=3), TIMES)
def test_planning_for_other_times_before_changes_nothing(
    world: World, before: list[int], now: int
) -> None:
    state = world.state()
    for other in before:
        plan(state, other)
    assert whole(plan(state, now)) == whole(plan(world.state(), now))


@settings(max_examples=100)
@given(varied_worlds(), TIMES, TIMES)
def test_the_time_of_the_last_plan_changes_nothing(world: World, last: int, now: int) -> None:
    state = world.state()
    state.pending.advance(last)
    assert whole(plan(state, now)) == whole(plan(world.state(), now))


@settings(max_examples=100)
@given(worlds_and_changes(), TIMES, st.booleans())
def test_a_fork_and_its_origin_do_not_see_each_others_changes(
    case: tuple[World, list[Change]], now: int, has_planned: bool
) -> None:
    world, some = case
    original = world.state()
    if has_planned:
        plan(original, now)
    fork = original.fork()
    for kept, other in ((original, fork), (fork, original)):
        before = whole(plan(kept, now))
        changed(other, some)
        plan(other, now)
        assert whole(plan(kept, now)) == before
        if kept is original:
            assert whole(plan(fork, now)) == whole(plan(changed(world.state(), some), now))


@settings(max_examples=100)
@given(worlds_and_changes(), TIMES)
def test_a_state_that_was_updated_equals_one_that_was_built_at_once(
    case: tuple[World, list[Change]], now: int
) -> None:
    world, some = case
    state, fresh = world.state(), changed(world.state(), some)
    plan(state, NOW)
    for change in some:
        change(state)
        plan(state, now)
        state = state.fork()
    assert whole(plan(state, now)) == whole(plan(fresh, now))


@settings(max_examples=100)
@given(worlds_and_changes(), TIMES)
def test_reasons_stay_as_they_were_whatever_happens_to_the_state(
    case: tuple[World, list[Change]], now: int
) -> None:
    world, some = case
    state = world.state()
    made, again = plan(state, now), whole(plan(state, now))
    state.accept(made)
    changed(state, some)
    state.set_queues({"other": Queue("other")})
    plan(state, LATER)
    assert whole(made) == again
