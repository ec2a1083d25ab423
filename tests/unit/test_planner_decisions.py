"""The planner: order, best fit, all or nothing, and a true reason for whoever waits."""

import pytest
from tests.driver import Driver, spec

from phalanx.api.views import reason_of
from phalanx.core.events import (
    CordonChanged,
    HoldChanged,
    Placed,
    QueueSet,
    SpawnFailed,
    WorkerLost,
)
from phalanx.core.model import Queue
from phalanx.core.reasons import (
    AboveMinimum,
    After,
    Backoff,
    Fragmented,
    Gathering,
    HeldBack,
    NeverFits,
    NoNodeMatches,
    NotEnough,
    OnHold,
    QueueStopped,
    Reason,
)
from phalanx.core.spec.validation import job_spec
from phalanx.core.time_units import HOUR
from phalanx.engine.planner_loop import event_of
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan
from phalanx.plan.model import OrderKey, PlannerPolicy
from phalanx.plan.state.from_cluster import node_spec
from phalanx.plan.state.planner_state import PlannerState


def planned(driver: Driver) -> Plan:
    return plan(PlannerState.of(driver.cluster), driver.now)


def carry_out(driver: Driver) -> dict[str, list[str]]:
    """Plan once and apply it all; where each job's tasks went."""
    made = planned(driver)
    for decision in made.decisions:
        driver.apply(event_of(decision))
    return {
        placement.job: [assignment.worker for assignment in placement.assignments]
        for placement in made.reserved()
    }


def reason(driver: Driver, job: str) -> Reason:
    return planned(driver).reasons[job]


def a_cluster(*gpus: int, **labels: str) -> Driver:
    driver = Driver()
    for n, count in enumerate(gpus):
        resources = {"gpu": 1000 * count, "cpu": 8000}
        driver.worker(f"w{n}", resources=resources, labels=dict(labels))
    return driver


def gpus(count: int) -> dict[str, object]:
    return {"resources": {"gpu": count}}


def test_a_gang_is_placed_whole() -> None:
    driver = a_cluster(1, 1, 1)
    job = driver.submit(spec(3, role=gpus(1)))
    assert carry_out(driver) == {job: ["w0", "w1", "w2"]}


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    driver = a_cluster(1, 1, 1)
    driver.run(driver.submit(spec(role=gpus(1))), "w2")
    large = driver.submit(spec(3, role=gpus(1)))
    small = driver.submit(spec(2, role=gpus(1)))
    assert carry_out(driver) == {small: ["w0", "w1"]}
    assert reason(driver, large) == NotEnough(want=3, fits=0, short_of="gpu")


def test_users_of_a_queue_are_ordered_by_what_they_use() -> None:
    driver = a_cluster(4)
    ana = [driver.submit(spec(role=gpus(1)), owner="ana") for _ in range(4)]
    bo = [driver.submit(spec(role=gpus(1)), owner="bo") for _ in range(2)]
    policy = PlannerPolicy(order=(OrderKey.PRIORITY, OrderKey.USER, OrderKey.CREATED))
    made = plan(PlannerState.of(driver.cluster, policy), driver.now)
    assert [placement.job for placement in made.reserved()] == [ana[0], bo[0], ana[1], bo[1]]


def test_with_size_first_a_gang_that_started_is_not_evicted_for_a_smaller_one() -> None:
    driver = a_cluster(2)
    large = driver.submit(spec(2, role=gpus(1)))
    urgent = driver.submit(spec(role=gpus(1), priority=9))
    policy = PlannerPolicy(order=(OrderKey.SIZE, OrderKey.PRIORITY, OrderKey.CREATED))
    made = plan(PlannerState.of(driver.cluster, policy), driver.now)
    assert [placement.job for placement in made.reserved()] == [large]
    driver.run(large, "w0", "w0")
    made = plan(PlannerState.of(driver.cluster, policy), driver.now + HOUR)
    assert made.decisions == ()
    assert urgent in made.reasons


def test_capacity_that_was_taken_is_not_free_for_the_rest_of_the_pass() -> None:
    driver = a_cluster(2)
    first = driver.submit(spec(role=gpus(2)))
    second = driver.submit(spec(role=gpus(2)))
    assert list(carry_out(driver)) == [first]
    assert second not in carry_out(driver)


def test_priority_goes_before_size_and_size_before_age() -> None:
    driver = a_cluster(4)
    driver.submit(spec(1, role=gpus(4)))
    large = driver.submit(spec(4, role=gpus(1)))
    urgent = driver.submit(spec(1, role=gpus(4), priority=5))
    assert list(carry_out(driver)) == [urgent]
    for job in (urgent,):
        driver.start(job)
        driver.exit(job, 0)
    assert list(carry_out(driver)) == [large]


def test_with_priority_and_age_in_the_order_size_does_not_matter() -> None:
    driver = a_cluster(1)
    for name in ("b", "a"):
        driver.submit(spec(name=name, role=gpus(1)))
    driver.submit(spec(2, name="late", role={"resources": {"gpu": 0.5}}))
    driver.submit(spec(name="first", priority=5, role=gpus(1)))
    policy = PlannerPolicy(order=(OrderKey.PRIORITY, OrderKey.CREATED))
    started = []
    for _ in range(4):
        state = PlannerState.of(driver.cluster, policy=policy)
        [start] = plan(state, driver.now).reserved()
        job = start.job
        driver.apply(Placed((start,)))
        driver.start(job)
        for index in range(driver.gang(job).size):
            driver.exit(job, index)
        started.append(driver.job(job).name)
    assert started == ["first", "b", "a", "late"]


def test_the_fullest_worker_that_fits_is_taken() -> None:
    driver = a_cluster(4, 4)
    carry_out_first = driver.submit(spec(role=gpus(1)))
    carry_out(driver)
    second = driver.submit(spec(role=gpus(1)))
    third = driver.submit(spec(role=gpus(4)))
    where = carry_out(driver)
    assert driver.task(carry_out_first, 0).worker == "w0"
    assert where == {second: ["w0"], third: ["w1"]}


def test_spread_takes_the_emptiest_worker() -> None:
    driver = a_cluster(4, 4)
    driver.submit(spec(role=gpus(1)))
    carry_out(driver)
    job = driver.submit(spec(role=gpus(1), spread=True))
    assert carry_out(driver) == {job: ["w1"]}


@pytest.mark.parametrize("spread", [False, True])
def test_a_worker_to_avoid_is_taken_only_if_nothing_else_fits(spread: bool) -> None:
    driver = a_cluster(1, 1)
    job = driver.submit(spec(role=gpus(1), spread=spread))
    driver.run(job, "w0")
    driver.exit(job, 0, code=1)
    assert carry_out(driver) == {job: ["w1"]}


def test_an_elastic_gang_starts_with_what_fits() -> None:
    driver = a_cluster(1, 1)
    job = driver.submit(spec(4, role=gpus(1) | {"min": 2}))
    assert carry_out(driver) == {job: ["w0", "w1"]}


def test_at_most_so_many_tasks_of_a_role_share_a_node() -> None:
    driver = a_cluster(4, 4)
    job = driver.submit(spec(2, role=gpus(1) | {"per_node": 1}))
    assert sorted(carry_out(driver)[job]) == ["w0", "w1"]


def test_fractions_share_a_device_and_whole_ones_do_not() -> None:
    driver = a_cluster(1)
    halves = driver.submit(spec(2, role={"resources": {"gpu": 0.5}}))
    whole = driver.submit(spec(role=gpus(1)))
    assert carry_out(driver) == {halves: ["w0", "w0"]}
    assert reason(driver, whole) == NotEnough(want=1, fits=0, short_of="gpu")


def test_tasks_that_share_a_device_are_evicted_for_a_task_that_needs_it_whole() -> None:
    driver = a_cluster(1)
    halves = driver.submit(spec(2, role={"resources": {"gpu": 0.5}}))
    driver.run(halves, "w0", "w0")
    driver.submit(spec(role=gpus(1), priority=10))
    [decision] = planned(driver).decisions
    assert isinstance(decision, Evict)
    assert [victim.job for victim in decision.victims] == [halves]


def test_a_lost_or_cordoned_worker_is_not_used() -> None:
    driver = a_cluster(1, 1, 1)
    driver.apply(WorkerLost("w0"))
    driver.apply(CordonChanged("w1", "for repair"))
    job = driver.submit(spec(role=gpus(1)))
    assert carry_out(driver) == {job: ["w2"]}


def test_a_task_that_restarts_alone_is_placed_before_new_work() -> None:
    driver = a_cluster(1, 1)
    fields = {"restart": "task", "match": "waiting-and-running"}
    job = driver.submit(spec(2, role=gpus(1), **fields))
    driver.run(job, "w0", "w1")
    driver.exit(job, 0, code=1)
    driver.submit(spec(role=gpus(1)))
    assert carry_out(driver) == {job: ["w0"]}


def test_a_gang_that_is_not_eligible_has_its_own_reason() -> None:
    driver = a_cluster(1)
    held = driver.submit(spec(role=gpus(1)))
    driver.apply(HoldChanged(held, on_hold=True))
    after = driver.submit(spec(after=[held], role=gpus(1)))
    failing = driver.submit(spec(role=gpus(1)))
    for _ in range(2):
        driver.run(failing, "w0")
        driver.exit(failing, 0, code=1)
    reasons = planned(driver).reasons
    assert reasons[held] == OnHold()
    assert reasons[after] == After((held,))
    assert isinstance(reasons[failing], Backoff)


def test_a_gang_that_could_not_be_prepared_has_the_cause_as_its_reason() -> None:
    driver = a_cluster(1, 1)
    job = driver.submit(spec(2, role=gpus(1)))
    for _ in range(2):
        driver.place(job, "w0", "w1")
        driver.apply(SpawnFailed(f"{job}.1", driver.job(job).epoch, "the registry is down"))
    why = "task 1 could not be started on w1: the registry is down"
    assert reason(driver, job) == Backoff(driver.pending(job).not_before, why)


def test_a_selector_that_matches_no_worker_is_named() -> None:
    driver = a_cluster(1, model="a100")
    job = driver.submit(spec(role=gpus(1) | {"node_selector": {"model": "h100"}}))
    assert reason(driver, job) == NoNodeMatches({"model": "h100"})


def test_a_worker_that_matches_but_takes_no_tasks_is_named_in_the_reason() -> None:
    driver = a_cluster(1, 1, model="h100")
    driver.worker("w2", resources={"gpu": 2000, "cpu": 8000})
    selecting = driver.submit(spec(role=gpus(1) | {"node_selector": {"model": "h100"}}))
    driver.apply(CordonChanged("w0", "test"))
    driver.apply(WorkerLost("w1"))
    assert str(reason(driver, selecting)) == (
        "no open worker has the label model=h100 (w0 is cordoned, w1 is lost)"
    )
    driver.apply(CordonChanged("w2", "test"))
    large = driver.submit(spec(role=gpus(2)))
    assert str(reason(driver, large)) == (
        "does not fit: each task needs 2 GPUs, the largest open worker has 0 (w2 is cordoned)"
    )
    anywhere = driver.submit(spec())
    assert str(reason(driver, anywhere)) == (
        "does not fit: no worker accepts tasks (w0 is cordoned, w1 is lost, w2 is cordoned)"
    )


def test_a_reason_that_was_given_before_names_the_present_state_of_a_worker() -> None:
    driver = a_cluster(1)
    driver.apply(CordonChanged("w0", "test"))
    job = driver.submit(spec(role=gpus(1)))
    state = PlannerState.of(driver.cluster)
    assert "w0 is cordoned" in str(plan(state, driver.now).reasons[job])
    driver.apply(WorkerLost("w0"))
    state.put_node("w0", node_spec(driver.cluster.nodes["w0"]))
    assert "w0 is lost" in str(plan(state, driver.now).reasons[job])


def test_a_task_larger_than_every_worker_never_fits() -> None:
    driver = a_cluster(4, 4)
    job = driver.submit(spec(role=gpus(8)))
    assert reason(driver, job) == NeverFits("gpu", want=8000, largest=4000, per_task=True)


def test_enough_in_sum_but_nowhere_together_is_fragmented() -> None:
    driver = a_cluster(2, 2)
    small = [driver.submit(spec(role=gpus(1), spread=True)) for _ in range(2)]
    assert sorted(carry_out(driver)) == sorted(small)
    job = driver.submit(spec(role=gpus(2)))
    assert reason(driver, job) == Fragmented("worker", best=0)


def test_a_reason_counts_all_roles_of_the_minimum() -> None:
    driver = a_cluster(2, 2)
    driver.run(driver.submit(spec(role=gpus(2))), "w1")
    document = {
        "roles": {
            "ps": {"command": "x", "resources": {"cpu": 1}},
            "worker": {"command": "x", "replicas": 4, "resources": {"gpu": 1}},
        }
    }
    job = driver.submit(job_spec(document))
    assert reason(driver, job) == NotEnough(want=5, fits=3, short_of="gpu")


def test_roles_that_fit_one_by_one_are_counted_together() -> None:
    """Either role alone fits, so a count of each alone would be 6 of 6."""
    driver = Driver()
    driver.worker("w0", resources={"cpu": 9000})
    role = {"command": "x", "replicas": 3, "resources": {"cpu": 2}}
    driver.run(driver.submit(spec(role={"resources": {"cpu": 1}})), "w0")
    job = driver.submit(
        job_spec({"roles": {"ps": role | {"resources": {"cpu": 1}}, "worker": role}})
    )
    assert reason(driver, job) == NotEnough(want=6, fits=5, short_of="cpu")


def test_a_gang_that_fits_without_its_group_says_what_its_group_lacks() -> None:
    driver = Driver()
    driver.worker("w0", resources={"cpu": 8000})
    driver.run(driver.submit(spec(role={"resources": {"cpu": 1}})), "w0")
    names = ["default/one", "default/two"]
    jobs = [
        driver.submit(spec(4, role={"resources": {"cpu": 1}}, name=name[8:], group=names))
        for name in names
    ]
    for job in jobs:
        assert str(reason(driver, job)) == "7 of 8 tasks of its group fit (short of CPUs)"


def test_a_gang_that_is_larger_than_the_cluster_never_fits() -> None:
    driver = a_cluster(2, 2)
    job = driver.submit(spec(3, role=gpus(2)))
    assert reason(driver, job) == NeverFits("gpu", want=6000, largest=4000)


def test_a_gang_whose_tasks_do_not_divide_the_nodes_never_fits() -> None:
    driver = a_cluster(3, 3)
    job = driver.submit(spec(3, role=gpus(2)))
    assert reason(driver, job) == NeverFits("gpu", want=6000, largest=4000)


def test_the_resource_that_is_short_is_named_and_not_the_first_one() -> None:
    driver = a_cluster(2, 2)
    job = driver.submit(spec(3, role={"resources": {"cpu": "100m", "gpu": 2}}))
    assert reason(driver, job) == NeverFits("gpu", want=6000, largest=4000)


def test_the_same_state_gives_the_same_plan() -> None:
    driver = a_cluster(2, 3, 4)
    for size in (1, 2, 3):
        driver.submit(spec(size, role=gpus(1)))
    assert planned(driver) == planned(driver)


def a_stream_of_small_jobs(driver: Driver) -> str:
    """One always runs on one of the two workers, so that both are never free at once."""
    running = driver.submit(spec(role=gpus(1)))
    carry_out(driver)
    driver.start(running)
    return running


def test_a_large_gang_does_not_starve_behind_a_stream_of_small_ones() -> None:
    driver = a_cluster(1, 1)
    running = [a_stream_of_small_jobs(driver)]
    large = driver.submit(spec(2, role=gpus(1)))
    placed: dict[str, list[str]] = {}
    minutes = 0
    while large not in placed:
        assert minutes < 30, "it starves"
        small = driver.submit(spec(role=gpus(1)))
        placed = carry_out(driver)
        if small in placed:
            driver.start(small)
            running.append(small)
        if running:
            driver.exit(running.pop(0), 0)
        driver.advance(60)
        minutes += 1
    assert minutes > 10


def test_a_gang_that_is_held_back_names_the_starving_gang() -> None:
    driver = a_cluster(1, 1)
    a_stream_of_small_jobs(driver)
    large = driver.submit(spec(2, role=gpus(1)))
    driver.advance(601)
    small = driver.submit(spec(role=gpus(1)))
    reasons = planned(driver).reasons
    assert reasons[large] == NotEnough(want=2, fits=1, short_of="gpu")
    assert reasons[small] == HeldBack(large, until=None)


def test_a_starving_gang_keeps_only_what_it_could_use() -> None:
    driver = a_cluster(1, 1)
    driver.worker("cpu", resources={"cpu": 8000})
    a_stream_of_small_jobs(driver)
    driver.submit(spec(2, role=gpus(1)))
    driver.advance(601)
    small = driver.submit(spec(role={"resources": {"cpu": 1}}))
    assert carry_out(driver) == {small: ["cpu"]}


def test_a_gang_that_never_fits_holds_no_other_back() -> None:
    driver = a_cluster(1, 1)
    driver.submit(spec(role=gpus(8)))
    driver.submit(spec(8, role=gpus(1)))
    driver.advance(601)
    small = driver.submit(spec(role=gpus(1)))
    assert carry_out(driver) == {small: ["w0"]}


def test_nothing_starts_from_a_queue_that_is_stopped_or_below_one() -> None:
    driver = a_cluster(1, 1)
    driver.apply(QueueSet(Queue("team", stopped=True)))
    driver.apply(QueueSet(Queue("child", parent="team")))
    stopped = driver.submit(spec(role=gpus(1), queue="child"))
    other = driver.submit(spec(role=gpus(1)))
    assert reason(driver, stopped) == QueueStopped("team")
    assert carry_out(driver) == {other: ["w0"]}
    driver.apply(QueueSet(Queue("team")))
    assert carry_out(driver) == {stopped: ["w1"]}


def test_a_task_with_an_image_waits_for_a_worker_that_runs_containers() -> None:
    driver = a_cluster(1)
    job = driver.submit(job_spec({"roles": {"w": {"image": "train:7b"}}}))
    assert reason(driver, job) == NoNodeMatches({"runtime": "containers"})
    driver.worker("c", resources={"gpu": 1000}, labels={"runtime": "containers"})
    assert carry_out(driver) == {job: ["c"]}


def test_a_role_that_is_placed_whole_gives_no_more_to_the_minimum_of_all() -> None:
    driver = a_cluster(1, 1)
    roles = {
        "chief": {"command": "lead", "min": 1, "resources": {"cpu": 1}},
        "worker": {"command": "train", "replicas": 2, "min": 0, "resources": {"gpu": 1}},
    }
    job = driver.submit(job_spec({"roles": roles, "min_available": 2}))
    assert len(carry_out(driver)[job]) == 3


def test_the_last_task_of_a_gang_starts_by_itself_where_enough_are_done() -> None:
    driver = a_cluster(4)
    role = {"min": 3, **gpus(1)}
    job = driver.submit(spec(4, role=role, restart="task", match="waiting-and-running"))
    driver.run(job, "w0", "w0", "w0", "w0")
    driver.fail(job, 2)
    for index in (0, 1, 3):
        driver.exit(job, index)
    assert carry_out(driver) == {job: ["w0"]}


def test_a_gathering_gang_says_how_many_places_it_has_and_what_is_missing() -> None:
    driver = a_cluster(2, 2)
    driver.run(driver.submit(spec(2, role=gpus(1))), "w0", "w0")
    job = driver.submit(spec(4, role=gpus(1), mode="non-strict"))
    assert reason(driver, job) == Gathering(2, 4, "short of GPUs"), "those of this plan count"
    carry_out(driver)
    assert reason(driver, job) == Gathering(2, 4, "short of GPUs")


def test_a_shortage_of_slots_is_called_that() -> None:
    driver = a_cluster()
    for name in "ab":
        driver.worker(name, resources={"gpu": 4000, "cpu": 8000}, slots=2)
    for _ in range(3):
        driver.submit(spec(role=gpus(1)))
    carry_out(driver)
    simple = driver.submit(spec(2, role=gpus(1)))
    roles = {name: {"command": "true", **gpus(1)} for name in ("x", "y")}
    mixed = driver.submit(job_spec({"roles": roles}))
    assert reason(driver, simple) == NotEnough(2, 1, "slots")
    assert reason(driver, mixed) == NotEnough(2, 1, "slots")
    never = driver.submit(spec(5, role=gpus(1)))
    assert reason(driver, never) == NeverFits("slots", 5, 4)


def test_tasks_above_the_minimum_without_a_place_have_a_reason_of_their_own() -> None:
    driver = a_cluster(2)
    job = driver.submit(spec(4, role={**gpus(1), "min": 2}, restart="task"))
    carry_out(driver)
    driver.start(job)
    reasons = planned(driver).reasons
    assert reasons[job] == AboveMinimum(2, "short of GPUs")
    assert list(reasons) == [], "the job is not pending"
    gang = driver.gang(job)
    assert reason_of(gang, reasons, driver.now) == reasons[job]
    limited = driver.submit(spec(4, role=gpus(0), restart="task", min_available=1, max_running=1))
    driver.run(limited, "w0")
    whole = driver.submit(spec(2, role={"min": 1}))
    driver.run(whole, "w0")
    assert [str(reason_of(driver.gang(each), {}, driver.now)) for each in (limited, whole)] == [
        "3 tasks above the minimum have no place (max_running is 1)",
        "1 task above the minimum has no place (they start when the gang starts again)",
    ]
    driver.apply(QueueSet(Queue("default", stopped=True)))
    assert reason(driver, job) == AboveMinimum(2, "queue default is stopped")
