"""Abnormal values: which worker is suspected, what follows, what the next attempt resumes from."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.causes import CauseKind
from phalanx.core.environment import GangEnvironment
from phalanx.core.events import (
    AbnormalValue,
    CancelRequested,
    CheckpointSaved,
    Evicted,
    Progressed,
    ValuesAbnormal,
)
from phalanx.core.model import Blob, Phase
from phalanx.core.records import GangStopping, TaskValueAbnormal, WorkerCordoned, WorkerSuspected
from phalanx.core.spec.watch import AbnormalKind
from phalanx.core.states import State

RUN, STOPPING, B = State.RUNNING, State.PREEMPTING, State.BLOCKED
#: Longer than the delay in which the alarms of a gang are collected.
JUDGED_S = 3.0


def a_watched_gang(action: str = "restart", **fields: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet("a", "b", "c")
    watch = {"loss": {"nan": action, "spike": {"action": action}}}
    job = driver.submit(spec(3, watch=watch, **fields))
    driver.run(job, "a", "b", "c")
    return driver, job


def report_nan(driver: Driver, job: str, index: int, step: int, name: str = "loss") -> None:
    task = driver.task(job, index)
    nan = AbnormalValue(name, AbnormalKind.NAN, step)
    driver.apply(ValuesAbnormal(task.id, task.epoch, (nan,)))


def save(driver: Driver, job: str, index: int, blob: str) -> None:
    task = driver.task(job, index)
    driver.apply(CheckpointSaved(task.id, task.epoch, Blob(blob, 10)))


def suspects(driver: Driver) -> list[str | None]:
    return [each.worker for each in driver.records if isinstance(each, WorkerSuspected)]


# Which worker is suspected


def test_the_rank_with_the_earliest_step_is_suspected_although_others_reported_first() -> None:
    driver, job = a_watched_gang("event")
    report_nan(driver, job, 0, step=101)
    report_nan(driver, job, 2, step=101)
    report_nan(driver, job, 1, step=100)
    driver.advance(JUDGED_S)
    assert suspects(driver) == ["b"]
    assert driver.job(job).avoid == ("b",)
    assert [each.job for each in driver.workers["b"].suspicions] == [job]


def test_ranks_of_several_workers_with_the_same_earliest_step_suspect_none_of_them() -> None:
    driver, job = a_watched_gang("event")
    report_nan(driver, job, 0, step=100)
    report_nan(driver, job, 2, step=100)
    driver.advance(JUDGED_S)
    assert suspects(driver) == []
    assert driver.job(job).avoid == ()


def test_abnormal_values_of_three_jobs_cordon_the_worker_they_began_on() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "ada"):
        job = driver.submit(spec(2, watch={"loss": {"nan": "event"}}), owner=owner)
        driver.run(job, "a", "b")
        report_nan(driver, job, 0, step=7)
        driver.advance(JUDGED_S)
    reason = (
        "3 jobs of 2 users failed or had an abnormal value on this worker within 10 minutes, and"
        " not elsewhere"
    )
    cordoned = [each for each in driver.records if isinstance(each, WorkerCordoned)]
    assert [(each.worker, each.why) for each in cordoned] == [("a", reason)]


def test_abnormal_values_of_jobs_that_run_on_one_worker_only_do_not_cordon_it() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    for owner in ("ada", "bob", "eve", "ada"):
        job = driver.submit(spec(watch={"loss": {"nan": "event"}}), owner=owner)
        driver.run(job, "a")
        report_nan(driver, job, 0, step=7)
        driver.advance(JUDGED_S)
    assert driver.workers["a"].cordoned is None


def test_a_job_with_abnormal_values_on_two_workers_is_held_against_neither() -> None:
    driver, job = a_watched_gang("restart")
    report_nan(driver, job, 0, step=5)
    driver.advance(JUDGED_S)
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    report_nan(driver, job, 1, step=5)
    driver.advance(JUDGED_S)
    assert driver.workers["a"].suspicions == driver.workers["b"].suspicions == ()
    assert suspects(driver) == ["a"]


def test_a_worker_is_avoided_also_after_a_long_healthy_attempt() -> None:
    driver, job = a_watched_gang("restart")
    driver.advance(2 * 3600)
    report_nan(driver, job, 1, step=10)
    driver.advance(JUDGED_S)
    driver.stop(job)
    assert driver.job(job).avoid == ("b",)
    assert driver.job(job).failures == 1


def test_a_worker_is_avoided_after_an_event_in_a_long_attempt() -> None:
    driver, job = a_watched_gang("event")
    driver.advance(2 * 3600)
    report_nan(driver, job, 1, step=10)
    driver.advance(JUDGED_S)
    driver.apply(Evicted(job, "ops", "maintenance"))
    driver.stop(job)
    assert driver.job(job).avoid == ("b",)


# What follows


def test_an_event_names_rank_worker_step_and_value_and_the_gang_runs_on() -> None:
    driver, job = a_watched_gang("event")
    spike = AbnormalValue("loss", AbnormalKind.SPIKE, 120, 57.1, 6.9)
    driver.apply(ValuesAbnormal(f"{job}.1", 1, (spike,)))
    driver.advance(JUDGED_S)
    [event] = [each for each in driver.records if isinstance(each, TaskValueAbnormal)]
    assert (event.rank, event.worker, event.step, event.value) == (1, "b", 120, 57.1)
    assert event.text == "rank 1 on b reported loss 57.1 at step 120, 8.3 times the median of 6.9"
    assert driver.states(job) == [RUN, RUN, RUN]
    assert driver.job(job).failures == 0


def test_a_report_that_is_repeated_is_one_event() -> None:
    driver, job = a_watched_gang("event")
    report_nan(driver, job, 0, step=9)
    report_nan(driver, job, 0, step=9)
    assert driver.kinds(job).count("TaskValueAbnormal") == 1
    report_nan(driver, job, 0, step=40)
    assert driver.kinds(job).count("TaskValueAbnormal") == 2


def test_a_value_without_a_rule_is_ignored() -> None:
    driver, job = a_watched_gang("fail")
    report_nan(driver, job, 0, step=9, name="accuracy")
    driver.advance(JUDGED_S)
    assert "TaskValueAbnormal" not in driver.kinds(job)
    assert driver.states(job) == [RUN, RUN, RUN]


def test_fail_ends_the_job_although_it_has_retries_left() -> None:
    driver, job = a_watched_gang("fail")
    report_nan(driver, job, 2, step=9)
    driver.advance(JUDGED_S)
    assert driver.states(job) == [STOPPING, STOPPING, STOPPING]
    driver.stop(job)
    end = driver.job(job).end
    assert end is not None
    assert end.verdict is Phase.FAILED
    assert str(end.cause) == "rank 2 on c reported loss nan at step 9"


def test_restart_stops_the_whole_gang_and_counts_as_a_failure() -> None:
    driver, job = a_watched_gang("restart", max_retries=2, restart="task")
    for failures in (1, 2):
        report_nan(driver, job, 2, step=9)
        driver.advance(JUDGED_S)
        [began] = [r for r in driver.records if isinstance(r, GangStopping)][failures - 1 :]
        assert (began.cause, began.task, began.stopping) == (CauseKind.ROLLBACK, 2, 3)
        driver.stop(job)
        assert driver.job(job).failures == failures
        if failures == 1:
            assert driver.phase(job) is Phase.PENDING
            driver.advance(60)
            driver.run(job, "a", "b", "c")
    assert driver.phase(job) is Phase.FAILED


@pytest.mark.parametrize(
    ("steps", "phase"), [((500, 500, 500), Phase.FAILED), ((500, 900, 1300), Phase.PENDING)]
)
def test_a_gang_that_never_gets_further_fails_however_long_its_attempts_are(
    steps: tuple[int, ...], phase: Phase
) -> None:
    driver, job = a_watched_gang("restart", max_retries=3)
    for step in steps:
        if driver.phase(job) is Phase.PENDING:
            driver.advance(600)
            driver.run(job, "a", "b", "c")
        driver.advance(2 * 3600)
        report_nan(driver, job, 0, step)
        driver.advance(JUDGED_S)
        driver.stop(job)
    assert driver.phase(job) is phase


def test_the_strongest_action_of_the_gang_is_taken() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    watch = {"loss": {"nan": "fail"}, "lr": {"nan": "event"}}
    job = driver.submit(spec(2, watch=watch))
    driver.run(job, "a", "b")
    report_nan(driver, job, 0, step=1, name="lr")
    report_nan(driver, job, 1, step=2)
    driver.advance(JUDGED_S)
    assert driver.job(job).stopping is not None
    assert suspects(driver) == ["a"]


def test_a_job_whose_last_value_is_abnormal_is_not_done() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(watch={"loss": {"nan": "fail"}}))
    driver.run(job, "a")
    report_nan(driver, job, 0, step=500)
    driver.exit(job, 0)
    assert driver.phase(job) is Phase.FAILED


def test_a_task_that_fails_after_an_abnormal_value_of_another_is_not_blamed_for_it() -> None:
    driver, job = a_watched_gang("restart")
    report_nan(driver, job, 0, step=10)
    driver.fail(job, 1)
    driver.stop(job)
    assert driver.job(job).avoid == ("a",)
    assert driver.job(job).failures == 1


def test_alarms_survive_a_new_leader() -> None:
    driver, job = a_watched_gang("restart")
    report_nan(driver, job, 0, step=10)
    driver.restart()
    driver.advance(JUDGED_S)
    assert driver.states(job) == [STOPPING, STOPPING, STOPPING]


def test_a_job_that_is_cancelled_before_its_alarms_are_judged_ends_cancelled() -> None:
    driver, job = a_watched_gang("fail")
    report_nan(driver, job, 0, step=10)
    driver.apply(CancelRequested(job))
    driver.stop(job)
    assert driver.phase(job) is Phase.CANCELLED


# What the next attempt resumes from


@pytest.mark.parametrize("policy", ["each", "all"])
def test_checkpoints_of_a_rollback_are_discarded_and_the_earlier_ones_stay(policy: str) -> None:
    driver, job = a_watched_gang("restart", checkpoint=policy)
    driver.apply(Evicted(job, "ops", "maintenance"))
    for index in range(3):
        save(driver, job, index, f"good-{index}")
    driver.stop(job)
    driver.run(job, "a", "b", "c")
    report_nan(driver, job, 0, step=10)
    driver.advance(JUDGED_S)
    for index in range(3):
        save(driver, job, index, f"bad-{index}")
    driver.stop(job)
    kept = [driver.task(job, index).checkpoint for index in range(3)]
    assert [blob and blob.id for blob in kept] == ["good-0", "good-1", "good-2"]
    assert driver.kinds(job).count("TaskCheckpointDiscarded") == 3


@pytest.mark.parametrize("policy", ["each", "all"])
def test_an_alarm_that_arrives_during_a_stop_discards_what_was_saved_in_it(policy: str) -> None:
    driver, job = a_watched_gang("restart", checkpoint=policy)
    driver.apply(Evicted(job, "ops", "maintenance"))
    for index in range(3):
        save(driver, job, index, f"bad-{index}")
    report_nan(driver, job, 0, step=10)
    driver.stop(job)
    assert [driver.task(job, index).checkpoint for index in range(3)] == [None] * 3
    assert driver.job(job).failures == 1


def test_after_a_rollback_tasks_learn_the_last_step_saved_before_the_abnormal_value() -> None:
    driver, job = a_watched_gang("restart")
    driver.apply(Progressed(f"{job}.0", 1, step=100, safe=True, saved_step=100))
    driver.apply(Progressed(f"{job}.0", 1, step=104, safe=True, saved_step=103))
    report_nan(driver, job, 1, step=105)
    driver.apply(Progressed(f"{job}.0", 1, step=110, safe=True, saved_step=110))
    driver.advance(JUDGED_S)
    driver.stop(job)
    epoch = driver.run(job, "a", "b", "c")
    assert resume_steps(driver, job) == {"103"}
    driver.apply(Progressed(f"{job}.0", epoch, step=120, safe=True, saved_step=120))
    driver.apply(Evicted(job, "ops", "maintenance"))
    driver.stop(job)
    driver.place(job, "a", "b", "c")
    assert resume_steps(driver, job) == {None}


def resume_steps(driver: Driver, job: str) -> set[str | None]:
    gang = driver.gang(job)
    environment = GangEnvironment(gang, driver.cluster.nodes)
    return {environment.environment(task).get("PHALANX_RESUME_STEP") for task in gang.tasks}


def test_a_rollback_loses_the_work_since_the_last_save() -> None:
    driver = Driver()
    driver.worker("a", resources={"gpu": 1000})
    fields: dict[str, Any] = {"watch": {"loss": {"nan": "restart"}}, "checkpoint": "each"}
    job = driver.submit(spec(role={"resources": {"gpu": 1}}, **fields))
    driver.run(job, "a")
    driver.advance(100)
    report_nan(driver, job, 0, step=10)
    driver.advance(JUDGED_S)
    save(driver, job, 0, "bad")
    driver.stop(job)
    losses = driver.job(job).losses
    assert losses is not None
    assert 100 < losses.total.gpu / 1e9 < 110


def test_a_task_that_finishes_while_its_gang_rolls_back_runs_again() -> None:
    driver, job = a_watched_gang("restart")
    report_nan(driver, job, 0, step=10)
    driver.advance(JUDGED_S)
    for index in range(3):
        driver.exit(job, index)
    assert driver.states(job) == [B, B, B]


def test_very_many_alarms_keep_the_earliest_and_the_strongest() -> None:
    driver = Driver()
    driver.fleet("a")
    job = driver.submit(spec(watch={"loss": {"nan": "fail"}, "lr": {"nan": "event"}}))
    driver.run(job, "a")
    for step in range(1, 100):
        report_nan(driver, job, 0, step, name="lr")
    report_nan(driver, job, 0, step=100)
    alarms = driver.attempt_of(job).alarms
    assert (len(alarms), alarms[0].step, alarms[-1].step) == (64, 1, 100)
    driver.advance(JUDGED_S)
    driver.stop(job)
    assert driver.phase(job) is Phase.FAILED
