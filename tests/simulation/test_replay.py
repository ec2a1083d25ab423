"""Replays of small traces with known results, and of arbitrary traces that must break no rule."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.cluster import Cluster
from phalanx.core.invariants import check
from phalanx.core.model import Queue
from phalanx.core.time_units import SECOND
from phalanx.plan.model import PlannerPolicy
from phalanx.sim.busy_day import BusyDay
from phalanx.sim.planners import ProductionPlanner
from phalanx.sim.policies import POLICIES, ReplayPolicy, planner_for, replay_trace
from phalanx.sim.replay import START, Replay, ReplaySettings
from phalanx.sim.report import summary
from phalanx.sim.results import jain
from phalanx.sim.traces import Trace, TraceJob, TraceNode, make_trace

OURS = ReplayPolicy("phalanx", PlannerPolicy())


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


def starts(trace: Trace, policy: ReplayPolicy, estimate: float = 1.0) -> dict[str, int]:
    """The second in which each job first starts."""
    cluster = Cluster()
    planner = planner_for(policy, cluster, ReplaySettings())
    replay = Replay(trace, cluster, planner, ReplaySettings(estimate))
    replay.run()
    assert not replay.rejected
    return {job: (at - START) // SECOND for job, at in replay.history.started.items()}


#: A job takes half the node for long. A gang needs the whole node; a short and a long job follow.
CONTENTION = a_trace(
    [
        a_job("long", 0, 100, 4),
        a_job("whole", 1, 50, 8),
        a_job("short", 2, 20, 4),
        a_job("longer", 3, 500, 4),
    ]
)


def test_first_come_first_served_starts_jobs_in_order() -> None:
    assert starts(CONTENTION, POLICIES["fcfs"]) == {
        "long": 0,
        "whole": 100,
        "short": 150,
        "longer": 150,
    }


def test_backfill_starts_a_job_that_ends_before_the_reserved_start_of_a_large_gang() -> None:
    assert starts(CONTENTION, OURS) == {"long": 0, "whole": 100, "short": 2, "longer": 150}


def test_without_backfill_a_large_gang_starts_after_all_smaller_jobs() -> None:
    assert starts(CONTENTION, POLICIES["no-backfill"]) == {
        "long": 0,
        "short": 2,
        "longer": 22,
        "whole": 522,
    }


def test_time_limits_that_are_too_long_let_other_jobs_delay_a_large_gang() -> None:
    jobs = [a_job("long", 0, 100, 4), a_job("whole", 1, 50, 8), a_job("between", 50, 60, 4)]
    assert starts(a_trace(jobs), OURS) == {"long": 0, "whole": 100, "between": 150}
    assert starts(a_trace(jobs), OURS, estimate=2) == {"long": 0, "between": 50, "whole": 110}


def test_time_limits_can_be_rounded_up_to_usual_values() -> None:
    doubled = ReplaySettings(estimate=2, rounded=True)
    durations = (0, 30, 31, 1800, 7200)
    limits = [doubled.time_limit(seconds * SECOND) // SECOND for seconds in durations]
    assert limits == [60, 60, 120, 3600, 4 * 3600]
    assert ReplaySettings(rounded=True).time_limit(121 * 86_400 * SECOND) == 121 * 86_400 * SECOND


def test_plans_keep_the_given_interval() -> None:
    jobs = [a_job("first", 0, 100, 8), a_job("second", 1, 9, 8), a_job("third", 2, 9, 8)]
    cluster = Cluster()
    replay_settings = ReplaySettings(plan_every=30 * SECOND)
    replay = Replay(
        a_trace(jobs), cluster, ProductionPlanner(cluster, PlannerPolicy()), replay_settings
    )
    replay.run()
    starts_at = {job: (at - START) // SECOND for job, at in replay.history.started.items()}
    # The plan at 100 s leaves the third job pending, so the next plan is made at 130 s.
    assert starts_at == {"first": 0, "second": 100, "third": 130}


def test_easy_backfill_starts_jobs_that_do_not_delay_the_first_one_that_does_not_fit() -> None:
    assert starts(CONTENTION, POLICIES["easy"]) == {
        "long": 0,
        "whole": 100,
        "short": 2,
        "longer": 150,
    }


def test_easy_backfill_starts_a_long_job_on_capacity_that_the_first_one_leaves() -> None:
    jobs = [a_job("long", 0, 100, 4), a_job("most", 1, 50, 6), a_job("endless", 2, 900, 2)]
    jobs += [a_job("too-much", 3, 900, 1)]
    assert starts(a_trace(jobs), POLICIES["easy"]) == {
        "long": 0,
        "most": 100,
        "endless": 2,
        "too-much": 150,
    }


def test_shortest_first_starts_every_gang_that_fits_by_its_time_limit() -> None:
    jobs = [a_job("all", 0, 100, 8), a_job("hour", 1, 3600, 8), a_job("minute", 2, 60, 8)]
    jobs += [a_job("part", 3, 7200, 4)]
    assert starts(a_trace(jobs), POLICIES["sjf"]) == {
        "all": 0,
        "minute": 100,
        "hour": 160,
        "part": 3760,
    }
    assert starts(CONTENTION, POLICIES["sjf"])["whole"] == 522


def test_least_attained_service_serves_the_queue_that_has_used_the_least_gpu_time() -> None:
    jobs = [a_job("first", 0, 100, 8, queue="a"), a_job("second", 1, 10, 8, queue="a")]
    jobs += [a_job("other", 2, 10, 8, queue="b")]
    assert starts(a_trace(jobs), POLICIES["las"]) == {"first": 0, "other": 100, "second": 110}


def test_every_job_that_was_started_is_done_or_timed_out() -> None:
    result = replay_trace(CONTENTION, POLICIES["fcfs"], ReplaySettings(estimate=0.5))
    assert (result.jobs, result.done, result.timed_out, result.still_pending) == (4, 0, 4, 0)
    assert summary([result])[1][:2] == [["jobs done", "0 of 4"], ["jobs timed out", "4"]]


def test_the_measurements_are_those_of_the_trace() -> None:
    result = replay_trace(CONTENTION, POLICIES["fcfs"])
    assert (result.jobs, result.done, result.still_pending) == (4, 4, 0)
    assert result.wait.mean == pytest.approx((0 + 99 + 148 + 147) / 4)
    assert result.wait_by_size["2-4"].mean == pytest.approx((0 + 148 + 147) / 3)
    assert result.wait_by_size["5-8"].p99 == pytest.approx(99)
    assert result.wait.longest == pytest.approx(148)
    assert result.wait_by_queue["q"].count == 4
    assert result.makespan_s == 650
    gpu_seconds = 100 * 4 + 50 * 8 + 20 * 4 + 500 * 4
    assert result.utilisation_to_end == pytest.approx(gpu_seconds / (650 * 8))
    slowdowns = [1, 149 / 50, 168 / 20, 647 / 500]
    assert result.slowdown.mean == pytest.approx(sum(slowdowns) / 4)
    assert (result.evictions, result.gpu_hours_lost) == (0, 0.0)


def test_lost_work_of_an_eviction_is_measured() -> None:
    jobs = [a_job("low", 0, 1000, 8), a_job("high", 600, 100, 8, priority=10)]
    result = replay_trace(a_trace(jobs), OURS)
    assert (result.evictions, result.done) == (1, 2)
    assert result.gpu_hours_lost == pytest.approx(8 * 600 / 3600)
    # It stops within 5 s, the other job runs for 100 s, and then it starts from the beginning.
    assert result.makespan_s == pytest.approx(600 + 5 + 100 + 1000, abs=3)


def test_queues_that_receive_their_fair_share_have_a_fairness_of_one() -> None:
    queues = [Queue("red"), Queue("blue")]
    jobs = [
        a_job(f"{queue}{n}", 0, 100, 1, queue=queue) for queue in ("red", "blue") for n in range(64)
    ]
    fair = replay_trace(a_trace(jobs, queues=queues), OURS)
    unfair = replay_trace(a_trace(jobs, queues=queues), POLICIES["fcfs"])
    assert fair.fairness == pytest.approx(1.0, abs=0.01)
    assert unfair.fairness < fair.fairness
    assert sum(share.received for share in fair.shares.values()) == pytest.approx(128 * 100 / 3600)


def test_jains_index_is_one_for_equal_values_and_one_over_n_if_one_has_everything() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_a_trace_always_gives_the_same_result() -> None:
    trace = BusyDay(seed=3, nodes=4, hours=1).trace
    assert replay_trace(trace, OURS) == replay_trace(trace, OURS)


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


@pytest.mark.parametrize("policy", [OURS, *POLICIES.values()], ids=lambda policy: policy.name)
@settings(max_examples=15)
@given(jobs=JOBS)
def test_no_node_is_overcommitted_and_every_job_that_fits_ends(
    policy: ReplayPolicy, jobs: list[tuple[int, int, int, int, str, int]]
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
    planner = planner_for(policy, cluster, ReplaySettings())
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
def test_a_busy_day_breaks_no_rule_and_every_pending_job_has_a_correct_reason(
    seed: int,
) -> None:
    day = BusyDay(seed, nodes=8, hours=4)
    day.run()
    accounts = day.replay.cluster.accounts.values()
    assert sum(account.eviction.count for account in accounts) > 0
    assert sum(account.failure.count for account in accounts) > 0
    assert day.replay.moves
