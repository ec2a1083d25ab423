"""How long gangs may be pending before they are overdue, and one of a queue at a time."""

from tests.unit.test_scenario import gang, scenario

from phalanx.core.time_units import HOUR, MINUTE
from phalanx.plan.cycle import plan
from phalanx.plan.first_gangs import survey
from phalanx.plan.groups import groups_of
from phalanx.plan.model import LONGEST_LIMIT, PlannerPolicy
from phalanx.plan.wait_times import WaitTimes
from phalanx.scenario.times import NOW

POLICY = PlannerPolicy(max_wait=3)
DAY_S = 24 * 3600


def test_the_bound_is_of_the_limit_or_the_median_wait_whichever_is_longer() -> None:
    waits = WaitTimes().after([(3, HOUR), (4, 3 * HOUR), (4, 9 * HOUR), (5, MINUTE)])
    assert waits.median(4) == 3 * HOUR
    assert waits.median(8) == 3 * HOUR  # of smaller gangs too
    assert waits.median(2) == 0
    assert waits.bound(POLICY, 3, 30 * MINUTE) == 9 * HOUR
    assert waits.bound(POLICY, 3, 4 * HOUR) == 12 * HOUR
    assert waits.bound(POLICY, 2, 10 * MINUTE) == 30 * MINUTE
    assert waits.bound(POLICY, 2, None) == 3 * LONGEST_LIMIT
    assert waits.bound(POLICY, 2, 60 * 24 * HOUR) == 3 * LONGEST_LIMIT
    assert waits.bound(POLICY, 2, MINUTE) == POLICY.starve_after


def test_the_median_forgets_old_waits() -> None:
    waits = WaitTimes().after([(1, HOUR)] * 200).after([(1, MINUTE)] * 51)
    assert waits.median(1) == MINUTE
    assert waits.after([]) is waits


def test_the_state_remembers_how_long_starting_gangs_were_pending() -> None:
    state = scenario(pending=[gang("g", "t0", "t1", waiting_s=120)]).state()
    made = plan(state, NOW)
    assert state.wait_times.median(2) == 0
    state.accept(made)
    assert state.wait_times.median(2) == 2 * MINUTE


def test_of_each_queue_the_oldest_overdue_gang_counts() -> None:
    limit = {"time_limit_s": 3600}
    gangs = [
        gang("overdue", "l0", waiting_s=11_500, **limit),
        gang("older", "o0", "o1", waiting_s=12_000, **limit),
        gang("other", "t0", waiting_s=11_000, queue="b", **limit),
        gang("new", "n0", waiting_s=10_900, queue="c", **limit),
    ]
    queues = [{"name": name} for name in ("default", "b", "c")]
    state = scenario(pending=gangs, queues=queues, policy={"max_wait": 3}).state()
    found = survey(state.at(NOW), ())
    assert found.overdue == {"older", "other"}


def test_a_group_is_overdue_when_its_last_member_has_been_pending_for_the_longest_bound() -> None:
    for since, expected in ((10_900, set()), (11_000, {"one", "two"})):
        gangs = [
            gang("one", "o0", waiting_s=20_000, time_limit_s=3600, group=["two"]),
            gang("two", "t0", waiting_s=since, time_limit_s=60, group=["one"]),
        ]
        moment = scenario(pending=gangs, policy={"max_wait": 3}).state().at(NOW)
        groups = [group.members for group in groups_of(moment.pending)]
        assert survey(moment, (), groups).overdue == expected


def test_the_oldest_of_the_overdue_gangs_and_groups_of_a_queue_counts() -> None:
    for waiting_s, expected in ((11_500, {"one", "two"}), (12_500, {"alone"})):
        gangs = [
            gang("one", "o0", waiting_s=12_000, time_limit_s=3600, group=["two"]),
            gang("two", "t0", waiting_s=12_000, time_limit_s=60, group=["one"]),
            gang("alone", "a0", waiting_s=waiting_s, time_limit_s=3600),
        ]
        moment = scenario(pending=gangs, policy={"max_wait": 3}).state().at(NOW)
        groups = [group.members for group in groups_of(moment.pending)]
        assert survey(moment, (), groups).overdue == expected


def test_short_gangs_with_equal_requests_do_not_hide_an_overdue_long_one() -> None:
    waiting = [gang(f"short{n}", f"s{n}", waiting_s=30 * DAY_S, time_limit_s=60) for n in range(3)]
    endless = gang("endless", "t0", waiting_s=43 * DAY_S)
    state = scenario(pending=[*waiting, endless], policy={"max_wait": 3}).state()
    assert survey(state.at(NOW), ()).overdue == {"endless"}
