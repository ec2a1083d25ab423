"""Why a job is pending, in one sentence each, with the right numbers."""

import pytest
from tests.driver import Driver, spec

from phalanx.core.events import HoldChanged
from phalanx.core.reasons import (
    AboveMinimum,
    After,
    Backoff,
    BelowMinResources,
    Fragmented,
    Gathering,
    HeldBack,
    NeverFits,
    NoNodeMatches,
    NoNodeSatisfies,
    NotEnough,
    NotSchedulable,
    OnHold,
    OtherElementsFirst,
    QueueLimit,
    QueueQuota,
    QueueStopped,
    Reason,
    WaitingForGroup,
    WaitingForMembers,
    WaitingForVictims,
    own_reason,
)
from phalanx.core.text import reworded
from phalanx.core.time_units import SECOND

NOON = 1_700_049_600 * SECOND

SENTENCES: list[tuple[Reason, str]] = [
    (OnHold(), "on hold until it is released"),
    (QueueStopped("team-a"), "queue team-a is stopped"),
    (After(("j-1",)), "runs after j-1, which has not finished"),
    (After(("j-1", "j-2")), "runs after j-1, j-2, which have not finished"),
    (
        Backoff(NOON),
        "backing off after a failure, next attempt at 2023-11-15 12:00:00 UTC",
    ),
    (OtherElementsFirst(None), "other elements of the array are placed first"),
    (OtherElementsFirst(4), "the array runs 4 elements at the same time (parallel)"),
    (WaitingForMembers(3, 8), "3 of 8 members submitted"),
    (
        WaitingForMembers(1, 4, 3),
        "only 1 of 4 members are pending, the match policy excludes the 3 running or done",
    ),
    (WaitingForMembers(1, None), "1 member submitted, the PodGroup is missing"),
    (WaitingForGroup(("team/b",)), "its group is incomplete: team/b has not been submitted"),
    (
        NoNodeMatches({"zone": "x", "gpu_model": "h100"}),
        "no worker has the labels gpu_model=h100, zone=x",
    ),
    (NoNodeSatisfies(("a > 1", "b")), "no node satisfies a > 1, b"),
    (NotSchedulable("NotSupported", "claims are not supported"), "claims are not supported"),
    (
        NeverFits("slots", 4, 0),
        "never fits: no worker accepts tasks",
    ),
    (
        NeverFits("gpu", 16_000, 8000, per_task=True),
        "never fits: each task needs 16 GPUs, the largest worker has 8",
    ),
    (
        NeverFits("gpu", 16_000, 8000),
        "never fits: the gang needs 16 GPUs, at most 8 fit on the empty cluster",
    ),
    (
        NeverFits("memory", 64 * 2**30, 2**30 * 3 // 2),
        "never fits: the gang needs 64Gi memory, at most 1536Mi fit on the empty cluster",
    ),
    (
        NeverFits("memory", 32 * 10**9, 2**33, per_task=True),
        "never fits: each task needs 29.8Gi memory, the largest worker has 8Gi",
    ),
    (QueueLimit("research", "gpu"), "queue research has reached its GPU limit"),
    (
        QueueLimit("research", "gpu", 8000, 7000),
        "the gang needs 8 GPUs, the limit of queue research is 7",
    ),
    (
        QueueQuota("research", "gpu", 3000, 2000),
        "the gang is not preemptible and needs 3 GPUs, the quota of queue research is 2",
    ),
    (
        QueueQuota("research", "gpu"),
        "not preemptible, and queue research has too little GPU quota left",
    ),
    (
        BelowMinResources("cpu", 5000, 3000),
        "not tried before 5 CPUs are free in total (min_resources), 3 are free",
    ),
    (WaitingForVictims(("j-1.0",)), "starts when j-1.0 has stopped"),
    (WaitingForVictims(("j-1.0", "j-1.1")), "starts when j-1.0, j-1.1 have stopped"),
    (HeldBack("j-1", None), "held back: starting now would delay j-1"),
    (
        HeldBack("j-1", NOON),
        "held back: starting now would delay j-1 (reserved start 2023-11-15 12:00:00 UTC)",
    ),
    (NotEnough(8, 5, "gpu"), "5 of 8 tasks fit (short of GPUs)"),
    (NotEnough(8, 7, "gpu", of_group=True), "7 of 8 tasks of its group fit (short of GPUs)"),
    (
        Gathering(2, 4, "short of GPUs"),
        "gathered 2 of 4 places, 2 are missing (short of GPUs)",
    ),
    (Gathering(3, 4, "short of GPUs"), "gathered 3 of 4 places, 1 is missing (short of GPUs)"),
    (
        AboveMinimum(2, "short of GPUs"),
        "2 tasks above the minimum have no place (short of GPUs)",
    ),
    (AboveMinimum(1, "short of GPUs"), "1 task above the minimum has no place (short of GPUs)"),
    (
        Fragmented("worker", 3),
        "fragmented: enough is free in total, but the best worker fits 3 tasks",
    ),
]


@pytest.mark.parametrize(("reason", "sentence"), SENTENCES)
def test_a_reason_reads_as_one_sentence(reason: Reason, sentence: str) -> None:
    assert str(reason) == sentence


def test_every_kind_of_reason_is_among_these() -> None:
    assert {type(reason) for reason, _ in SENTENCES} == set(Reason.__args__)


@pytest.mark.parametrize(("reason", "_sentence"), SENTENCES)
def test_a_reason_is_one_line_without_its_full_stop(reason: Reason, _sentence: str) -> None:
    assert "\n" not in str(reason)
    assert not str(reason).endswith(".")


def test_a_long_list_is_cut_with_its_number() -> None:
    jobs = tuple(f"j-{n}" for n in range(8))
    assert str(After(jobs)) == (
        "runs after j-0, j-1, j-2, j-3, j-4 and 3 more, which have not finished"
    )
    assert str(After(jobs[:5])) == "runs after j-0, j-1, j-2, j-3, j-4, which have not finished"


# What follows from the job alone


def test_a_job_that_can_start_has_no_reason_of_its_own() -> None:
    driver = Driver()
    job = driver.submit(spec())
    assert own_reason(driver.job(job), driver.now) is None


def test_a_hold_comes_before_dependencies() -> None:
    driver = Driver()
    first = driver.submit(spec())
    job = driver.submit(spec(after=[first]))
    assert own_reason(driver.job(job), driver.now) == After((first,))
    driver.apply(HoldChanged(job, on_hold=True))
    assert own_reason(driver.job(job), driver.now) == OnHold()


def test_a_backoff_is_the_reason_until_it_ends() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    for _ in range(2):
        driver.run(job, "a")
        driver.fail(job, 0)
    until = driver.now + 10 * SECOND
    assert own_reason(driver.job(job), driver.now) == Backoff(until)
    assert own_reason(driver.job(job), until - 1) == Backoff(until)
    assert own_reason(driver.job(job), until) is None


def test_reasons_are_reworded_for_other_clusters_without_changing_names() -> None:
    reason = NeverFits("gpu", 16_000, 8_000, per_task=True)
    words = {"task": "pod", "worker": "node"}
    expected = "never fits: each pod needs 16 GPUs, the largest node has 8"
    assert reworded(str(reason), words) == expected
    sentence = "tasks of ml/worker, tf-worker.2 and task-1 in queue worker: role=worker; no worker."
    expected = "pods of ml/worker, tf-worker.2 and task-1 in queue worker: role=worker; no node."
    assert reworded(sentence, words) == expected
