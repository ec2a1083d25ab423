"""How long gangs may be pending before they are overdue, and one of them at a time."""

from tests.unit.test_scenario import gang, scenario, task

from phalanx.core.time_units import HOUR, MINUTE
from phalanx.plan.cycle import plan
from phalanx.plan.model import LONGEST_LIMIT, PlannerPolicy
from phalanx.plan.wait_times import WaitTimes
from phalanx.scenario.times import NOW

POLICY = PlannerPolicy(max_wait=3)


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


def test_while_an_overdue_gang_of_a_queue_runs_the_next_one_waits_half_as_long_again() -> None:
    def planned(overdue: frozenset[str], waited: int) -> frozenset[str]:
        running = gang("ran", task("r0", node="n1"), waiting_s=7200, time_limit_s=60)
        late = gang("late", "t0", "t1", "t2", waiting_s=waited, time_limit_s=60)
        state = scenario(running=[running], pending=[late]).state()
        state.overdue = overdue
        return plan(state, NOW).overdue

    assert planned(frozenset(), 600) == {"late"}
    assert planned(frozenset({"ran"}), 899) == frozenset()
    assert planned(frozenset({"ran"}), 900) == {"late"}
    assert planned(frozenset({"ended"}), 600) == {"late"}


def test_a_gang_that_starts_overdue_counts_until_it_has_ended() -> None:
    state = scenario(pending=[gang("late", "t0", waiting_s=7200, time_limit_s=60)]).state()
    state.accept(plan(state, NOW))
    assert state.overdue == {"late"}
    state.remove_pending("late")
    state.accept(plan(state, NOW))
    assert state.overdue == frozenset()
