"""Failures: which tasks stop, what is counted, which worker is suspected, and the retries."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.events import (
    CancelRequested,
    CordonChanged,
    Event,
    Evicted,
    Exited,
    InputsUnavailable,
    PollersCounted,
    Progressed,
    Shrunk,
    SpawnFailed,
    Started,
    Vanished,
    WorkerLost,
)
from phalanx.core.model import Phase
from phalanx.core.reasons import own_reason
from phalanx.core.records import GangStopping, JobEnded, RetryDelayed, WorkerCordoned
from phalanx.core.states import State
from phalanx.core.time_units import HOUR, SECOND

B, R, RUN = State.BLOCKED, State.RESERVED, State.RUNNING
STOPPING, STOPPED, DONE, FAILED = State.PREEMPTING, State.PREEMPTED, State.DONE, State.FAILED


def a_running_gang(size: int = 3, **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(size, **fields))
    driver.run(job, "a", "b", "c")
    return driver, job


def fail_and_stop(driver: Driver, job: str, index: int) -> None:
    driver.fail(job, index)
    driver.stop(job)


def backoff_of(driver: Driver, job: str) -> float:
    return (driver.pending(job).not_before - driver.now) / SECOND


# What a failure stops


def test_the_trigger_is_preempted_at_once_and_its_siblings_are_stopping() -> None:
    driver, job = a_running_gang()
    changes = driver.fail(job, 1)
    assert driver.states(job) == [STOPPING, STOPPED, STOPPING]
    assert driver.phase(job) is Phase.STOPPING
    assert changes.wake == {"a", "c"}


def test_a_released_sibling_that_has_not_started_yet_is_stopped_too() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(3))
    driver.place(job, "a", "b", "c")
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 1))
    driver.fail(job, 0)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPING]


def test_a_stop_settles_in_the_commit_in_which_the_last_sibling_stops() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.stop(job, 2)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPED]
    driver.stop(job, 1)
    assert driver.states(job) == [B, B, B]
    assert driver.phase(job) is Phase.PENDING
    assert driver.job(job).stopping is None


def test_a_stop_does_not_wait_for_the_failed_task() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    driver.run(job, "a")
    driver.fail(job, 0)
    assert driver.states(job) == [State.PENDING]
    assert not driver.cluster.nodes["a"].charges


def test_a_gang_whose_tasks_all_fail_needs_no_stop_report() -> None:
    driver, job = a_running_gang()
    for index in range(3):
        driver.fail(job, index)
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 1


@pytest.mark.parametrize(
    "failure",
    [
        Exited("j-1.0", 1, 1),
        Exited("j-1.0", 1, signal=9),
        Exited("j-1.0", 1),
        Vanished("j-1.0", 1),
        WorkerLost("a"),
        SpawnFailed("j-1.0", 1, "no such file"),
    ],
)
def test_every_kind_of_failure_after_the_release_stops_the_gang_and_counts(failure: Event) -> None:
    driver = Driver()
    driver.fleet("a", "b")
    driver.submit(spec(2), "j-1")
    driver.place("j-1", "a", "b")
    driver.accept("j-1")
    driver.apply(failure)
    assert driver.states("j-1") == [STOPPED, STOPPING]
    assert driver.job("j-1").failures == 1
    driver.stop("j-1")
    assert driver.states("j-1") == [B, B]
    assert driver.job("j-1").avoid == ("a",)


def lack_program(driver: Driver, job: str, *workers: str) -> None:
    """Start the gang on workers that do not have its program."""
    driver.place(job, *workers)
    driver.accept(job)
    epoch = driver.job(job).epoch
    for index in range(len(workers)):
        driver.apply(SpawnFailed(f"{job}.{index}", epoch, "cannot run x: no such file", final=True))


def why_it_ended(driver: Driver) -> str:
    [ended] = [each for each in driver.records if isinstance(each, JobEnded)]
    return ended.why


def test_a_program_that_two_workers_do_not_have_is_not_tried_on_a_third() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec())
    lack_program(driver, job, "a")
    assert driver.phase(job) is Phase.PENDING
    lack_program(driver, job, "b")
    assert driver.phase(job) is Phase.FAILED
    assert why_it_ended(driver).endswith("no such file; gave up after 2 attempts on a, b")


def test_a_program_that_the_only_worker_does_not_have_is_tried_there_twice() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    lack_program(driver, job, "a")
    lack_program(driver, job, "a")
    assert driver.phase(job) is Phase.FAILED
    assert why_it_ended(driver).endswith("gave up after 2 attempts on a")


#: Of a worker that takes tasks with secrets.
DELIVERED = {"secrets": "delivered"}


def prepared_first(size: int = 1, **fields: Any) -> Any:
    return spec(size, role={"env": {"TOKEN": "${resources.hub.token}"}}, **fields)


def refuse_preparation(driver: Driver, job: str, *workers: str) -> None:
    """Reserve workers of which the last one cannot prepare its task."""
    driver.place(job, *workers)
    task = f"{job}.{len(workers) - 1}"
    driver.apply(SpawnFailed(task, driver.job(job).epoch, "no such image", final=True))


def test_a_task_that_two_workers_cannot_prepare_fails_its_job_before_any_start() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c", labels=DELIVERED)
    job = driver.submit(prepared_first(2))
    refuse_preparation(driver, job, "a", "b")
    assert driver.phase(job) is Phase.PENDING
    refuse_preparation(driver, job, "a", "c")
    assert driver.phase(job) is Phase.FAILED
    why = "task 1 could not be started on c: no such image; gave up after 2 attempts on b, c"
    assert why_it_ended(driver) == why


def test_a_failure_to_prepare_that_may_pass_is_retried_and_is_the_reason_of_the_backoff() -> None:
    driver = Driver()
    driver.worker("a", labels=DELIVERED)
    job = driver.submit(prepared_first())
    for _ in range(3):
        driver.place(job, "a")
        driver.apply(SpawnFailed(f"{job}.0", driver.job(job).epoch, "registry is down"))
        driver.advance(max(0.0, backoff_of(driver, job)))
    assert driver.phase(job) is Phase.PENDING
    reason = own_reason(driver.job(job), driver.now - 1)
    assert str(reason).startswith(
        "task 0 could not be started on a: registry is down; next attempt"
    )


def test_inputs_that_do_not_exist_fail_the_job() -> None:
    driver = Driver()
    driver.worker("a", labels=DELIVERED)
    job = driver.submit(prepared_first())
    for _ in range(2):
        driver.place(job, "a")
        epoch = driver.job(job).epoch
        driver.apply(InputsUnavailable(job, epoch, "secret ml/hub has no key k", final=True))
    assert driver.phase(job) is Phase.FAILED
    assert why_it_ended(driver) == "secret ml/hub has no key k; gave up after 2 attempts"


def test_a_running_gang_does_not_fail_because_it_cannot_grow() -> None:
    driver = Driver()
    driver.fleet("a", "b", labels=DELIVERED)
    job = driver.submit(prepared_first(2, min_available=1, restart="task"))
    driver.place(job, "a")
    driver.accept(job)
    driver.start(job)
    for _ in range(3):
        driver.advance(max(0.0, backoff_of(driver, job)))
        driver.place(job, "b", tasks=[1])
        driver.apply(SpawnFailed(f"{job}.1", driver.job(job).epoch, "no such image", final=True))
    assert driver.phase(job) is Phase.RUNNING


def test_tasks_of_a_gang_that_lack_their_program_on_one_worker_may_find_it_on_another() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    lack_program(driver, job, "a", "a")
    assert driver.phase(job) is Phase.PENDING
    driver.run(job, "b", "b")
    assert driver.phase(job) is Phase.RUNNING


def test_a_gang_that_lacks_its_program_on_two_workers_at_once_fails_at_once() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(3))
    lack_program(driver, job, "a", "b", "c")
    assert driver.phase(job) is Phase.FAILED


def test_another_failure_after_a_missing_program_is_retried_as_usual() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec())
    lack_program(driver, job, "a")
    driver.run(job, "b")
    driver.fail(job, 0)
    assert driver.phase(job) is Phase.PENDING


def test_the_pause_before_a_retry_is_announced_with_its_length() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(backoff="20s", max_retries=5))
    for attempt, pause in ((1, None), (2, 20.0), (3, 40.0)):
        driver.advance(60)
        driver.run(job, "a")
        changes = driver.fail(job, 0)
        delays = [each for each in changes.records if isinstance(each, RetryDelayed)]
        assert [each.seconds for each in delays] == ([] if pause is None else [pause])
        assert [each.failures for each in delays] == ([] if pause is None else [attempt])


def test_a_stalled_task_is_a_counted_failure_whose_process_still_occupies_its_worker() -> None:
    driver, job = a_running_gang(stall_after="2m")
    driver.advance(121)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPING]
    assert driver.job(job).failures == 1
    assert driver.residues[f"{job}.0", 1].worker == "a"


def test_progress_of_any_task_puts_a_stall_off() -> None:
    driver, job = a_running_gang(stall_after="2m")
    driver.advance(100)
    driver.apply(Progressed(f"{job}.1", 1, step=5))
    driver.advance(100)
    assert driver.states(job) == [RUN, RUN, RUN]
    driver.advance(21)
    assert driver.phase(job) is Phase.STOPPING


def test_the_task_furthest_behind_is_the_one_that_stalled() -> None:
    driver, job = a_running_gang(stall_after="2m")
    for index, step in [(0, 7), (1, 7), (2, 6)]:
        driver.apply(Progressed(f"{job}.{index}", 1, step=step))
    driver.advance(121)
    assert driver.states(job) == [STOPPING, STOPPING, STOPPED]


def test_a_stall_is_noticed_also_if_it_is_due_before_the_start() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec(stall_after="10s"))
    driver.place(job, "a")
    driver.advance(15)
    driver.start(job)
    driver.advance(30)
    assert driver.job(job).failures == 1


def test_a_task_that_its_worker_stopped_is_not_a_counted_failure() -> None:
    driver, job = a_running_gang()
    driver.exit(job, 0, 0, signalled=True)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPING]
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert (driver.job(job).failures, driver.job(job).avoid) == (0, ())


# Counting


def test_three_failures_of_one_task_fail_the_gang() -> None:
    """A fails three times, B and C never count."""
    driver, job = a_running_gang()
    for failures in (1, 2):
        fail_and_stop(driver, job, 0)
        assert driver.states(job) == [B, B, B]
        assert driver.job(job).failures == failures
        driver.advance(400)
        driver.run(job, "a", "b", "c")
    fail_and_stop(driver, job, 0)
    assert driver.phase(job) is Phase.FAILED
    assert driver.job(job).failures == 3
    assert driver.kinds(job).count("GangStopped") == 3


def test_alternating_culprits_do_not_multiply_the_retries() -> None:
    driver, job = a_running_gang()
    for culprit in (0, 1):
        fail_and_stop(driver, job, culprit)
        driver.advance(400)
        driver.run(job, "a", "b", "c")
    fail_and_stop(driver, job, 2)
    assert driver.phase(job) is Phase.FAILED
    assert driver.job(job).failures == 3


@pytest.mark.parametrize(("written", "failures"), [(0, 1), (1, 1), (2, 2), (5, 5)])
def test_max_retries_is_the_number_of_counted_failures_that_end_a_job(
    written: int, failures: int
) -> None:
    driver, job = a_running_gang(max_retries=written)
    for n in range(failures):
        assert driver.phase(job) is Phase.RUNNING
        fail_and_stop(driver, job, n % 3)
        driver.advance(400)
        if n < failures - 1:
            driver.run(job, "a", "b", "c")
    assert driver.phase(job) is Phase.FAILED
    assert driver.states(job) == [FAILED, FAILED, FAILED]


def test_siblings_that_fail_while_stopping_do_not_count() -> None:
    driver, job = a_running_gang()
    driver.fail(job, 0)
    driver.fail(job, 1)
    driver.apply(WorkerLost("c"))
    assert driver.states(job) == [B, B, B]
    assert driver.job(job).failures == 1


def test_a_lost_worker_with_several_tasks_of_a_gang_counts_once() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(3))
    driver.run(job, "a", "a", "b")
    driver.apply(WorkerLost("a"))
    assert driver.states(job) == [STOPPED, STOPPED, STOPPING]
    driver.stop(job)
    assert driver.job(job).failures == 1


@pytest.mark.parametrize(
    "begin",
    [
        lambda job: Evicted(job, by="j-9", why="a more urgent job needs its place"),
        lambda job: CancelRequested(job, by="eve"),
    ],
)
def test_evictions_and_cancels_do_not_count(begin: Callable[[str], Event]) -> None:
    driver, job = a_running_gang()
    driver.apply(begin(job))
    driver.fail(job, 0)
    driver.stop(job)
    assert driver.job(job).failures == 0


def test_a_failure_soon_after_a_shrink_is_not_counted() -> None:
    driver, job = a_running_gang(role={"min": 1}, grace="15s", max_retries=1)
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.stop(job, 2)
    driver.advance(74)
    driver.fail(job, 0)
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert (driver.job(job).failures, driver.job(job).avoid) == (0, ())
    assert backoff_of(driver, job) <= 0
    assert not driver.workers["a"].suspicions


def test_a_failure_long_after_a_shrink_is_counted() -> None:
    driver, job = a_running_gang(role={"min": 1}, grace="15s")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.stop(job, 2)
    driver.advance(76)
    fail_and_stop(driver, job, 0)
    assert driver.job(job).failures == 1


def test_a_shrink_excuses_failures_of_its_own_attempt_only() -> None:
    driver, job = a_running_gang(role={"min": 1}, grace="15s")
    driver.apply(Shrunk(job, (2,), by="j-9"))
    driver.stop(job, 2)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    fail_and_stop(driver, job, 0)
    assert driver.job(job).failures == 1


# Healthy running


def test_an_hour_of_healthy_running_clears_the_count() -> None:
    driver, job = a_running_gang()
    for _ in range(2):
        fail_and_stop(driver, job, 0)
        driver.advance(400)
        driver.run(job, "a", "b", "c")
    driver.advance(HOUR // SECOND)
    fail_and_stop(driver, job, 0)
    assert driver.job(job).failures == 1
    assert driver.phase(job) is Phase.PENDING
    assert driver.job(job).avoid == ("a",)


def test_less_than_an_hour_does_not_clear_the_count() -> None:
    driver, job = a_running_gang()
    fail_and_stop(driver, job, 0)
    driver.run(job, "a", "b", "c")
    driver.advance(HOUR // SECOND - 1)
    fail_and_stop(driver, job, 1)
    assert driver.job(job).failures == 2


def test_an_hour_counts_only_once_the_whole_gang_runs() -> None:
    driver, job = a_running_gang()
    fail_and_stop(driver, job, 0)
    driver.place(job, "a", "b", "c")
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 2))
    assert driver.attempt_of(job).healthy_since is None
    driver.start(job)
    assert driver.attempt_of(job).healthy_since == driver.now


def test_a_healthy_hour_that_an_eviction_ended_counts_too() -> None:
    driver, job = a_running_gang()
    for _ in range(2):
        fail_and_stop(driver, job, 0)
        driver.advance(400)
        driver.run(job, "a", "b", "c")
    driver.advance(HOUR // SECOND)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    fail_and_stop(driver, job, 0)
    assert driver.job(job).failures == 1


def test_a_task_that_starts_and_ends_in_one_step_completes_a_healthy_start() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 1))
    driver.exit(job, 1)
    assert driver.attempt_of(job).healthy_since == driver.now


# Backoff


def test_the_first_restart_is_at_once_and_later_ones_wait_twice_as_long_each() -> None:
    driver, job = a_running_gang(max_retries=9)
    waits = []
    for _ in range(8):
        fail_and_stop(driver, job, 0)
        waits.append(backoff_of(driver, job))
        driver.advance(max(0, waits[-1]))
        driver.run(job, "a", "b", "c")
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_job_chooses_its_first_backoff() -> None:
    driver, job = a_running_gang(backoff="3s", max_retries=9)
    fail_and_stop(driver, job, 0)
    driver.run(job, "a", "b", "c")
    fail_and_stop(driver, job, 0)
    assert backoff_of(driver, job) == 3


def test_an_eviction_has_no_backoff_however_often_the_job_failed() -> None:
    driver, job = a_running_gang(max_retries=9)
    for _ in range(4):
        fail_and_stop(driver, job, 0)
        driver.advance(400)
        driver.run(job, "a", "b", "c")
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.stop(job)
    assert backoff_of(driver, job) <= 0
    assert driver.run(job, "a", "b", "c") == 6


def test_the_end_of_a_backoff_wakes_the_planner() -> None:
    driver, job = a_running_gang()
    fail_and_stop(driver, job, 0)
    driver.run(job, "a", "b", "c")
    driver.fail(job, 0)
    driver.fail(job, 1)
    [timer] = [t for t in driver.fail(job, 2).timers if t.at == driver.pending(job).not_before]
    driver.now = timer.at
    assert driver.apply(timer.event).replan


# Finished work


def test_a_gang_with_a_task_done_is_never_run_again() -> None:
    driver, job = a_running_gang()
    driver.exit(job, 0)
    done = driver.task(job, 0)
    driver.fail(job, 1)
    driver.stop(job)
    assert driver.phase(job) is Phase.FAILED
    assert driver.states(job) == [DONE, FAILED, FAILED]
    assert driver.task(job, 0) == done


def test_an_eviction_of_a_gang_with_a_task_done_fails_it_too() -> None:
    driver, job = a_running_gang()
    driver.exit(job, 2)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.stop(job)
    assert driver.states(job) == [FAILED, FAILED, DONE]


def test_a_job_whose_tasks_all_succeeded_while_stopping_is_done() -> None:
    driver, job = a_running_gang()
    driver.apply(Evicted(job, by="j-9", why="a test"))
    for index in range(3):
        assert driver.phase(job) is Phase.STOPPING
        driver.exit(job, index)
    assert driver.phase(job) is Phase.DONE
    assert driver.states(job) == [DONE, DONE, DONE]


def test_a_task_that_exited_with_0_after_a_signal_is_not_done() -> None:
    driver, job = a_running_gang()
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.exit(job, 0)
    driver.exit(job, 1, 0, signalled=True)
    driver.exit(job, 2)
    assert driver.states(job) == [B, B, B]


# Blame


def test_the_next_attempt_avoids_the_triggers_worker() -> None:
    driver, job = a_running_gang()
    fail_and_stop(driver, job, 1)
    assert driver.job(job).avoid == ("b",)


def test_avoided_workers_are_listed_once_and_up_to_a_cap() -> None:
    driver = Driver()
    names = [f"w{n:02}" for n in range(20)]
    driver.fleet(*names)
    job = driver.submit(spec(max_retries=100))
    for name in [*names, names[-1]]:
        driver.run(job, name)
        driver.fail(job, 0)
        driver.advance(400)
    assert driver.job(job).avoid == tuple(names[-16:])


def failing_first(
    driver: Driver, worker: str, owner: str = "ada", after_s: float = 1, **fields: Any
) -> str:
    job = driver.submit(spec(**fields), owner=owner)
    driver.run(job, worker)
    driver.advance(after_s)
    driver.fail(job, 0)
    return job


def failing_only_on(driver: Driver, worker: str, owner: str = "ada") -> None:
    """A job fails on the worker and is done on another one."""
    job = failing_first(driver, worker, owner)
    driver.run(job, "b")
    driver.exit(job, 0)
    assert driver.phase(job) is Phase.DONE


def test_jobs_of_two_users_that_fail_on_one_worker_and_succeed_elsewhere_cordon_it() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    failing_only_on(driver, "a", owner="ada")
    failing_only_on(driver, "a", owner="bob")
    assert driver.workers["a"].cordoned is None
    failing_only_on(driver, "a", owner="ada")
    reason = "3 jobs of 2 users failed on this worker within 10 minutes, and not elsewhere"
    assert driver.workers["a"].cordoned == reason
    assert driver.workers["b"].cordoned is None
    assert [r.worker for r in driver.records if isinstance(r, WorkerCordoned)] == ["a"]


def test_jobs_that_run_elsewhere_longer_than_on_the_worker_count_against_it() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "eve"):
        driver.run(failing_first(driver, "a", owner), "b")
    failing_first(driver, "a")
    assert driver.workers["a"].cordoned is not None


def test_jobs_that_have_just_started_elsewhere_do_not_count_yet() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    jobs = [failing_first(driver, "a", owner, after_s=10) for owner in ("ada", "bob", "eve")]
    for job in jobs:
        driver.run(job, "b")
    failing_first(driver, "a")
    assert driver.workers["a"].cordoned is None


@pytest.mark.parametrize("max_retries", [1, 3])
def test_broken_programs_that_fail_first_on_a_worker_do_not_cordon_it(max_retries: int) -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "ada", "bob", "eve"):
        failing_first(driver, "a", owner, max_retries=max_retries)
    assert driver.workers["a"].cordoned is None


def test_flaky_programs_of_one_user_do_not_cordon_a_worker() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for _ in range(5):
        failing_only_on(driver, "a", owner="ada")
    assert driver.workers["a"].cordoned is None


def test_programs_that_succeed_on_the_worker_at_another_try_do_not_count_against_it() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "eve"):
        job = failing_first(driver, "a", owner)
        driver.run(job, "a")
        driver.exit(job, 0)
    assert driver.workers["a"].cordoned is None
    assert not driver.workers["a"].suspicions


def test_programs_that_are_missing_on_one_worker_do_not_cordon_it() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "eve"):
        job = driver.submit(spec(), owner=owner)
        lack_program(driver, job, "a")
        driver.run(job, "b")
        driver.exit(job, 0)
    assert driver.workers["a"].cordoned is None


@pytest.mark.parametrize("is_released", [True, False])
def test_a_worker_that_cannot_start_what_others_start_is_cordoned(is_released: bool) -> None:
    """The reason is the machine's, so jobs of one user suffice."""
    driver = Driver()
    driver.fleet("a", "b")
    for _ in range(3):
        job = driver.submit(spec())
        driver.place(job, "a")
        if is_released:
            driver.accept(job)
        driver.apply(SpawnFailed(f"{job}.0", driver.job(job).epoch, "no space left on device"))
        assert driver.workers["a"].cordoned is None
        driver.run(job, "b")
        driver.exit(job, 0)
    reason = "3 jobs could not be started on this worker within 10 minutes, and not elsewhere"
    assert driver.workers["a"].cordoned == reason


def test_the_last_worker_that_is_open_is_not_cordoned_for_failures() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "eve"):
        driver.run(failing_first(driver, "a", owner), "b")
    driver.apply(CordonChanged("b", "a fan is broken"))
    failing_first(driver, "a")
    assert driver.workers["a"].cordoned is None
    driver.apply(CordonChanged("b", None))
    failing_first(driver, "a")
    assert driver.workers["a"].cordoned is not None


def test_jobs_that_fail_wherever_they_are_cordon_no_worker() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    for owner in ("ada", "bob", "eve", "ada"):
        job = failing_first(driver, "a", owner)
        driver.run(job, "b")
        driver.fail(job, 0)
    assert [worker.cordoned for worker in driver.workers.values()] == [None, None, None]
    assert not driver.workers["a"].suspicions


def test_failures_far_apart_do_not_cordon_a_worker() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob") * 3:
        failing_only_on(driver, "a", owner)
        driver.advance(301)
    assert driver.workers["a"].cordoned is None


def test_only_the_first_failed_task_of_a_stop_raises_a_suspicion() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.run(job, "a", "b")
    driver.fail(job, 0)
    driver.fail(job, 1)
    assert [each.job for each in driver.workers["a"].suspicions] == [job]
    assert not driver.workers["b"].suspicions


def test_uncordoning_a_worker_clears_its_suspicions() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "eve"):
        failing_only_on(driver, "a", owner)
    assert driver.workers["a"].cordoned is not None
    driver.apply(CordonChanged("a", None))
    for owner in ("ada", "bob"):
        failing_only_on(driver, "a", owner)
    assert driver.workers["a"].cordoned is None


# A gang that is stuck: some run, and the rest will never start


@pytest.mark.parametrize("lost", [True, False])
def test_running_tasks_of_plain_workers_stop_when_a_siblings_reservation_is_lost(
    lost: bool,
) -> None:
    driver = Driver()
    driver.plain("p", "q", "r")
    job = driver.submit(spec(3))
    driver.place(job, "p", "q", "r")
    driver.claim(job, 0)
    driver.claim(job, 1)
    assert driver.states(job) == [RUN, RUN, R]
    if lost:
        driver.apply(WorkerLost("r"))
    else:
        driver.advance(31)
    # No process of the third task exists, so it is blocked at once, and nothing has failed.
    assert driver.states(job) == [STOPPING, STOPPING, B]
    reason = "worker r was lost" if lost else "not claimed in time by r"
    assert [str(record.why) for record in driver.records if isinstance(record, GangStopping)] == [
        f"task 2 did not start: {reason}"
    ]
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    assert driver.phase(job) is Phase.PENDING
    assert (driver.job(job).failures, driver.job(job).avoid) == (0, ("r",))
    assert not driver.cluster.residues
    assert driver.task(job, 2).releases == 0


def test_an_unclaimed_sibling_of_a_failed_task_is_blocked_at_once() -> None:
    driver = Driver()
    driver.plain("p", "q", "r")
    job = driver.submit(spec(3))
    driver.place(job, "p", "q", "r")
    driver.claim(job, 0)
    driver.claim(job, 1)
    driver.fail(job, 0)
    assert driver.states(job) == [STOPPED, STOPPING, B]
    assert driver.gang(job).job.failures == 1
    driver.stop(job, 1)
    assert driver.states(job) == [B, B, B]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_gang_with_an_unclaimed_task_is_not_done_when_the_others_are(repeats: bool) -> None:
    driver = Driver()
    driver.plain("p", "q")
    job = driver.submit(spec(2, on_partial_completion="restart" if repeats else "fail"))
    driver.place(job, "p", "q")
    driver.claim(job, 0)
    driver.exit(job, 0)
    driver.advance(31)
    if repeats:
        assert driver.states(job) == [B, B]
    else:
        assert driver.phase(job) is Phase.FAILED


def test_a_plain_worker_that_leaves_a_task_unclaimed_polls_for_fewer_than_was_counted() -> None:
    driver = Driver()
    driver.plain("p", slots=None)
    driver.apply(PollersCounted("p", 3))
    assert driver.cluster.nodes["p"].worker.slots == 3
    job = driver.submit(spec(2))
    driver.place(job, "p", "p")
    driver.claim(job, 0)
    driver.advance(31)
    assert driver.cluster.nodes["p"].worker.slots == 1


@pytest.mark.parametrize("lost", [True, False])
def test_running_tasks_of_agents_stop_when_a_siblings_start_is_lost(lost: bool) -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(3))
    driver.place(job, "a", "b", "c")
    driver.accept(job)
    driver.apply(Started(f"{job}.0", 1))
    driver.apply(Started(f"{job}.2", 1))
    if lost:
        driver.apply(WorkerLost("b"))
    else:
        driver.advance(31)
    assert driver.states(job) == [STOPPING, STOPPED, STOPPING]
    driver.stop(job)
    assert driver.states(job) == [B, B, B]
    if lost:
        driver.inventory("b")
    assert driver.place(job, "a", "b", "c") == 2


def test_two_lost_tasks_of_one_gang_are_never_pending_alone() -> None:
    driver, job = a_running_gang()
    driver.apply(WorkerLost("a"))
    driver.apply(WorkerLost("b"))
    assert driver.states(job) == [STOPPED, STOPPED, STOPPING]
    driver.stop(job)
    assert driver.states(job) == [B, B, B]


# Never again


def test_with_restart_never_the_first_failure_fails_the_job_and_stops_the_rest() -> None:
    driver, job = a_running_gang(restart="never")
    driver.fail(job, 0)
    assert driver.states(job) == [STOPPED, STOPPING, STOPPING]
    driver.stop(job)
    assert driver.phase(job) is Phase.FAILED
    assert driver.states(job) == [FAILED, FAILED, FAILED]
    assert str(driver.job(job).cause) == "task 0 exited with code 1 on a"


def test_with_restart_never_an_eviction_fails_the_job_with_its_cause() -> None:
    driver, job = a_running_gang(restart="never")
    driver.apply(Evicted(job, by="j-9", why="j-9 has a higher priority"))
    driver.stop(job)
    assert driver.phase(job) is Phase.FAILED
    assert str(driver.job(job).cause) == "j-9 has a higher priority"


def test_with_restart_never_a_reservation_may_be_lost_or_taken_at_no_cost() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2, restart="never"))
    driver.place(job, "a", "b")
    driver.advance(31)
    driver.place(job, "a", "b")
    driver.apply(Evicted(job, by="j-9", why="a test"))
    assert driver.phase(job) is Phase.PENDING
    assert driver.states(job) == [B, B]
