"""Warnings about a submitted job: each rule by itself, and its sentence."""

from typing import Any

from tests.driver import spec

from phalanx.core import causes
from phalanx.core.ledger import DAY, Account, AccountEntry, Loss, LostTo, Tally
from phalanx.core.model import Queue
from phalanx.core.spec.job import JobSpec
from phalanx.core.warnings import NoCheckpoint, PreemptionRisk, Standing, risks

NOW = 20_000 * DAY
PRICE = {"gpu": 3_500_000}
HIGH = {"high": 1000}


def standing(**fields: Any) -> Standing:
    given: dict[str, Any] = {
        "now": NOW,
        "classes": {},
        "prices": PRICE,
        "queue": Queue("default"),
        "is_alone": True,
        "usage": {},
        "account": Account("default"),
    }
    return Standing(**(given | fields))


def four_gpus(**fields: Any) -> JobSpec:
    return spec(4, role={"resources": {"gpu": 1}}, **fields)


def evicted(*days: int) -> Account:
    account = Account("default")
    for day in days:
        loss = Loss((NOW // DAY - day) * DAY, LostTo.EVICTION, causes.shrunk("ml/urgent"), 0, 0)
        account = account.plus(loss, "j-1", AccountEntry("default/a", Tally()))
    return account


def test_there_is_no_warning_without_a_risk() -> None:
    assert risks(four_gpus(), standing()) == []


def test_a_higher_priority_class_is_a_risk() -> None:
    [risk, _] = risks(four_gpus(), standing(classes=HIGH, account=evicted(8, 6, 1, 0)))
    assert isinstance(risk, PreemptionRisk)
    assert risk.evictions == 3
    assert str(risk).startswith(
        "this job is low-priority; higher-priority jobs may preempt it: priority class high ranks"
        " above it (3 evictions in queue default in the last 7 days)"
    )
    assert risks(four_gpus(priority=1000), standing(classes=HIGH)) == []


def test_a_job_that_is_not_preemptible_is_not_at_risk() -> None:
    assert risks(four_gpus(preemptible=False), standing(classes=HIGH)) == []


def test_running_above_the_quota_is_a_risk() -> None:
    queue = Queue("default", quota={"gpu": 8000})
    assert risks(four_gpus(), standing(queue=queue, usage={"gpu": 4000})) == []
    [risk, _] = risks(four_gpus(), standing(queue=queue, usage={"gpu": 5000}))
    assert isinstance(risk, PreemptionRisk)
    assert risk.because == "queue default would exceed its gpu quota"


def test_a_queue_without_a_quota_beside_others_is_a_risk() -> None:
    [risk, _] = risks(four_gpus(), standing(is_alone=False))
    assert isinstance(risk, PreemptionRisk)
    assert risk.because == "queue default has no quota"


def test_five_hours_on_four_gpus_without_a_checkpoint_put_seventy_dollars_at_stake() -> None:
    [_, warning] = risks(four_gpus(time_limit="5h"), standing(classes=HIGH))
    assert warning == NoCheckpoint(4, 5, 70.0)
    assert "up to 20 GPU-hours ($70.00)" in str(warning)


def test_without_a_limit_there_is_no_end_to_what_can_be_lost() -> None:
    [_, warning] = risks(four_gpus(), standing(classes=HIGH))
    assert warning == NoCheckpoint(4, None, 14.0)
    assert "4 GPU-hours ($14.00) per hour" in str(warning)


def test_a_short_job_or_one_with_checkpoints_is_not_warned_about_them() -> None:
    for job in (four_gpus(time_limit="1h"), four_gpus(checkpoint="each")):
        [risk] = risks(job, standing(classes=HIGH))
        assert isinstance(risk, PreemptionRisk)


def test_without_a_gpu_there_are_no_gpu_hours_in_the_sentence() -> None:
    assert "lose all work since the start; set" in str(NoCheckpoint(0, None, 0.0))
    assert "lose all work since the start; set" in str(NoCheckpoint(0, 5, 0.0))
    assert "lose all work since the start, $2.00 per hour;" in str(NoCheckpoint(0, None, 2))


def test_without_a_price_there_is_no_money_in_the_sentence() -> None:
    [_, warning] = risks(four_gpus(time_limit="5h"), standing(classes=HIGH, prices={}))
    assert "$" not in str(warning)
