"""Traces small enough to know what should come out, and arbitrary ones that must break no rule."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.cluster import Cluster
from phalanx.core.invariants import check
from phalanx.core.model import Queue
from phalanx.core.spec.job import SECOND
from phalanx.plan.model import PlannerPolicy
from phalanx.sim.day import Day
from phalanx.sim.planners import FirstCome, Production
from phalanx.sim.policies import NAMED, Rules, replayed
from phalanx.sim.replay import START, Pace, Replay
from phalanx.sim.results import jain
from phalanx.sim.traces import Trace, TraceJob, TraceNode, make_trace

OURS = Rules("phalanx", PlannerPolicy())


def a_job(name: str, at: int, duration: int, size: int, **fields: object) -> TraceJob:
    gpu = fields.get("gpu", 1)
    queue, priority = fields.get("queue", "q"), fields.get("priority", 0)
    assert isinstance(gpu, int)
    assert isinstance(queue, str)
    assert isinstance(priority, int)
    resources = {"gpu": gpu * 1000}
    return TraceJob(name, at * SECOND, duration * SECOND, queue, size, resources, priority)


def a_trace(jobs: Iterable[TraceJob], nodes: int = 1, queues: Iterable[Queue] = ()) -> Trace:
    machines = [TraceNode(f"n{n}", {"gpu": 8000}) for n in range(nodes)]
    return make_trace(list(jobs), machines, list(queues))


def starts(trace: Trace, rules: Rules, estimate: float = 1.0) -> dict[str, int]:
    """The second in which each job starts first."""
    cluster = Cluster()
    planner = FirstCome(cluster) if rules.policy is None else Production(cluster, rules.policy)
    replay = Replay(trace, cluster, planner, Pace(estimate))
    replay.run()
    assert not replay.rejected
    return {job: (at - START) // SECOND for job, at in replay.history.started.items()}


#: Half the node is taken for long; a gang that needs all of it comes; then a short and a long one.
LINE = a_trace(
    [
        a_job("long", 0, 100, 4),
        a_job("whole", 1, 50, 8),
        a_job("short", 2, 20, 4),
        a_job("longer", 3, 500, 4),
    ]
)


def test_first_come_first_served_lets_nobody_overtake() -> None:
    assert starts(LINE, NAMED["fcfs"]) == {"long": 0, "whole": 100, "short": 150, "longer": 150}


def test_backfill_fills_the_time_before_a_large_gang_with_what_ends_in_time() -> None:
    assert starts(LINE, OURS) == {"long": 0, "whole": 100, "short": 2, "longer": 150}


def test_without_backfill_a_large_gang_waits_for_all_that_are_smaller() -> None:
    assert starts(LINE, NAMED["no-backfill"]) == {"long": 0, "short": 2, "longer": 22, "whole": 522}


def test_limits_that_are_too_long_hide_when_a_large_gang_could_have_started() -> None:
    jobs = [a_job("long", 0, 100, 4), a_job("whole", 1, 50, 8), a_job("between", 50, 60, 4)]
    assert starts(a_trace(jobs), OURS) == {"long": 0, "whole": 100, "between": 150}
    assert starts(a_trace(jobs), OURS, estimate=2) == {"long": 0, "between": 50, "whole": 110}


def test_limits_can_be_what_people_write() -> None:
    pace = Pace(estimate=2, rounds=True)
    assert [pace.limit(seconds * SECOND) // SECOND for seconds in (0, 30, 31, 1800, 7200)] == [
        *(60, 60, 120, 3600, 4 * 3600),
    ]
    assert Pace(rounds=True).limit(121 * 86_400 * SECOND) == 121 * 86_400 * SECOND


def test_plans_can_be_kept_apart() -> None:
    jobs = [a_job("first", 0, 100, 8), a_job("second", 1, 9, 8), a_job("third", 2, 9, 8)]
    cluster = Cluster()
    pace = Pace(plan_every=30 * SECOND)
    replay = Replay(a_trace(jobs), cluster, Production(cluster, PlannerPolicy()), pace)
    replay.run()
    starts_at = {job: (at - START) // SECOND for job, at in replay.history.started.items()}
    # The plan after 100 s leaves the third waiting, and so the next is made after 130 s.
    assert starts_at == {"first": 0, "second": 100, "third": 130}


def test_a_baseline_spreads_what_the_planner_packs() -> None:
    jobs = [a_job("a", 0, 100, 1), a_job("b", 1, 100, 1), a_job("c", 2, 100, 1, gpu=8)]
    trace = a_trace(jobs, nodes=2)
    assert starts(trace, NAMED["fcfs"])["c"] == 100
    assert starts(trace, OURS)["c"] == 2


def test_the_measures_are_those_of_the_trace() -> None:
    result = replayed(LINE, NAMED["fcfs"])
    assert (result.jobs, result.done, result.left_waiting) == (4, 4, 0)
    assert result.waiting.mean == pytest.approx((0 + 99 + 148 + 147) / 4)
    assert result.waiting_by_size["2-4"].mean == pytest.approx((0 + 148 + 147) / 3)
    assert result.waiting_by_size["5-8"].p99 == pytest.approx(99)
    assert result.waiting_by_queue["q"].count == 4
    assert result.span_s == 650
    gpu_seconds = 100 * 4 + 50 * 8 + 20 * 4 + 500 * 4
    assert result.utilisation_to_end == pytest.approx(gpu_seconds / (650 * 8))
    slowdowns = [1, 149 / 50, 168 / 20, 647 / 500]
    assert result.slowdown.mean == pytest.approx(sum(slowdowns) / 4)
    assert (result.evictions, result.gpu_hours_lost) == (0, 0.0)


def test_what_an_eviction_costs_is_measured() -> None:
    jobs = [a_job("low", 0, 1000, 8), a_job("high", 600, 100, 8, priority=10)]
    result = replayed(a_trace(jobs), OURS)
    assert (result.evictions, result.done) == (1, 2)
    assert result.gpu_hours_lost == pytest.approx(8 * 600 / 3600)
    # It stops within 5 s, the other runs for 100 s, and all of it begins again.
    assert result.span_s == pytest.approx(600 + 5 + 100 + 1000, abs=3)


def test_a_queue_that_gets_what_it_deserves_is_fairly_treated() -> None:
    queues = [Queue("red"), Queue("blue")]
    jobs = [
        a_job(f"{queue}{n}", 0, 100, 1, queue=queue) for queue in ("red", "blue") for n in range(64)
    ]
    fair = replayed(a_trace(jobs, queues=queues), OURS)
    unfair = replayed(a_trace(jobs, queues=queues), NAMED["fcfs"])
    assert fair.fairness == pytest.approx(1.0, abs=0.01)
    assert unfair.fairness < fair.fairness
    assert sum(share.received for share in fair.shares.values()) == pytest.approx(128 * 100 / 3600)


def test_the_index_of_jain_is_one_if_all_are_equal_and_one_over_n_if_one_has_all() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_the_same_trace_ends_the_same_way() -> None:
    trace = Day(seed=3, nodes=4, hours=1).trace
    assert replayed(trace, OURS) == replayed(trace, OURS)


JOBS = st.lists(
    st.builds(
        lambda at, duration, size, gpu, queue, priority: (at, duration, size, gpu, queue, priority),
        st.integers(0, 300),
        st.integers(0, 400),
        st.integers(1, 12),
        st.sampled_from((1, 2, 3, 8)),
        st.sampled_from(("red", "blue")),
        st.sampled_from((0, 10)),
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("rules", [OURS, *NAMED.values()], ids=lambda rules: rules.name)
@settings(max_examples=15)
@given(jobs=JOBS)
def test_no_node_is_over_committed_and_every_job_that_fits_ends(
    rules: Rules, jobs: list[tuple[int, int, int, int, str, int]]
) -> None:
    trace = a_trace(
        [
            a_job(f"j{n}", at, lasts, size, gpu=gpu, queue=queue, priority=priority)
            for n, (at, lasts, size, gpu, queue, priority) in enumerate(jobs)
        ],
        nodes=3,
        queues=[Queue("red", weight=2), Queue("blue", quota={"gpu": 8000})],
    )
    cluster = Cluster()
    planner = FirstCome(cluster) if rules.policy is None else Production(cluster, rules.policy)
    replay = Replay(trace, cluster, planner)
    while replay.step():
        check(cluster)
        for node in cluster.nodes.values():
            charged = sum(charge.resources["gpu"] for charge in node.charges.values())
            assert charged <= node.worker.resources["gpu"]
    assert not cluster.gangs
    assert not replay.rejected
    assert len(replay.history.ended) + len(trace.misfits) == len(jobs)


@pytest.mark.parametrize("seed", range(3))
def test_a_busy_day_breaks_no_rule_and_nobody_waits_for_a_reason_that_is_not_true(
    seed: int,
) -> None:
    day = Day(seed, nodes=8, hours=4)
    day.live()
    accounts = day.replay.cluster.accounts.values()
    assert sum(account.eviction.count for account in accounts) > 0
    assert sum(account.failure.count for account in accounts) > 0
