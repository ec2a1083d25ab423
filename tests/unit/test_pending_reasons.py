"""Why a job waits, in one sentence each, with the right numbers."""

import pytest
from tests.driver import Driver, spec

from phalanx.core.events import HoldChanged
from phalanx.core.reasons import (
    After,
    Backoff,
    Fragmented,
    HeldBack,
    NeverFits,
    NoNodeMatches,
    NotEnough,
    OnHold,
    QueueLimit,
    QueueStopped,
    Reason,
    WaitingForGroup,
    WaitingForMembers,
    WaitingForVictims,
    own_reason,
)
from phalanx.core.spec.job import SECOND

NOON = 1_700_049_600 * SECOND

SENTENCES: list[tuple[Reason, str]] = [
    (OnHold(), "an operator has put it on hold"),
    (QueueStopped("team-a"), "queue team-a is stopped"),
    (After(("j-1",)), "it starts after j-1"),
    (After(("j-1", "j-2")), "it starts after j-1, j-2"),
    (
        Backoff(NOON),
        "it failed or could not start, and is tried again at 2023-11-15 12:00:00 UTC",
    ),
    (WaitingForMembers(3, 8), "3 of 8 members have been submitted"),
    (
        WaitingForMembers(1, 4, 3),
        "it starts with 4 members, but only 1 wait, and the 3 that run or are done do not count",
    ),
    (WaitingForGroup(("team/b",)), "its group is not complete without team/b"),
    (
        NoNodeMatches({"zone": "x", "gpu_model": "h100"}),
        "no worker has gpu_model=h100, zone=x",
    ),
    (
        NeverFits("slots", 4, 0),
        "no worker is open that could take it",
    ),
    (
        NeverFits("gpu", 16_000, 8000),
        "it does not fit the cluster as it is: it needs 16 gpu, and 8 gpu is the most",
    ),
    (
        NeverFits("memory", 64 * 2**30, 2**30 * 3 // 2),
        "it does not fit the cluster as it is: it needs 64Gi memory, and 1536Mi memory is the most",
    ),
    (QueueLimit("research", "gpu"), "queue research is at its limit of gpu"),
    (WaitingForVictims(("j-1.0",)), "it starts when j-1.0 has stopped"),
    (WaitingForVictims(("j-1.0", "j-1.1")), "it starts when j-1.0, j-1.1 have stopped"),
    (HeldBack("j-1", None), "it would delay j-1"),
    (HeldBack("j-1", NOON), "it would delay j-1, which is to start at 2023-11-15 12:00:00 UTC"),
    (NotEnough(8, 5, "gpu"), "there is room for 5 of 8 tasks; gpu is short"),
    (Fragmented("node", 3), "enough is free in sum, but no node has it: the best holds 3"),
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
    assert str(After(jobs)) == "it starts after j-0, j-1, j-2, j-3, j-4 and 3 more"
    assert str(After(jobs[:5])) == "it starts after j-0, j-1, j-2, j-3, j-4"


# What follows from the job alone


def test_a_job_that_only_the_cluster_holds_up_has_no_reason_of_its_own() -> None:
    driver = Driver()
    job = driver.submit(spec())
    assert own_reason(driver.gang(job), driver.now) is None


def test_a_hold_comes_before_dependencies() -> None:
    driver = Driver()
    first = driver.submit(spec())
    job = driver.submit(spec(after=[first]))
    assert own_reason(driver.gang(job), driver.now) == After((first,))
    driver.apply(HoldChanged(job, on_hold=True))
    assert own_reason(driver.gang(job), driver.now) == OnHold()


def test_a_job_waits_for_its_backoff_until_it_ends() -> None:
    driver = Driver()
    driver.worker("a")
    job = driver.submit(spec())
    for _ in range(2):
        driver.run(job, "a")
        driver.fail(job, 0)
    until = driver.now + 10 * SECOND
    assert own_reason(driver.gang(job), driver.now) == Backoff(until)
    assert own_reason(driver.gang(job), until - 1) == Backoff(until)
    assert own_reason(driver.gang(job), until) is None
