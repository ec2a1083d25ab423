"""Warnings about a submitted job: each rule by itself, and its sentence."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.driver import spec

from phalanx.core import causes
from phalanx.core.ledger import DAY, Account, AccountEntry, Loss, LostTo, Tally
from phalanx.core.model import PreemptWithin, Queue
from phalanx.core.reasons import QueueLimit, QueueQuota
from phalanx.core.reclaim import Reclaimers
from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import HOUR
from phalanx.core.warnings import (
    PreemptionRisk,
    Standing,
    UndeclaredEndpoint,
    WorkAtStake,
    exceeded_by,
    risks,
    undeclared_endpoints,
    unlikely_requests,
)

NOW = 20_000 * DAY
PRICE = {"gpu": 3_500_000}
HIGH = {"high": 1000}


def standing(**fields: Any) -> Standing:
    given: dict[str, Any] = {
        "now": NOW,
        "classes": {},
        "prices": PRICE,
        "long_running": HOUR,
        "queue": Queue("default"),
        "highest": None,
        "reclaimers": None,
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


LOW = "this job is low-priority; higher-priority jobs may preempt it"


def test_there_is_no_warning_without_a_risk() -> None:
    assert risks(four_gpus(), standing()) == []


def test_a_higher_priority_class_is_a_risk() -> None:
    [risk] = risks(four_gpus(), standing(classes=HIGH, account=evicted(8, 6, 1, 0)))
    assert str(risk) == f"{LOW} (priority class high); 3 jobs of queue default evicted in 7 days"
    assert "\n" not in str(risk)


def test_a_job_of_higher_priority_in_the_queue_is_a_risk() -> None:
    [risk] = risks(four_gpus(), standing(highest=9))
    assert str(risk) == f"{LOW} (queue default has a job of priority 9)"


@pytest.mark.parametrize("highest", [None, 7, 1000])
def test_the_job_with_the_highest_priority_is_not_warned(highest: int | None) -> None:
    assert risks(four_gpus(priority=1000), standing(classes=HIGH, highest=highest)) == []


def test_a_job_that_cannot_be_preempted_is_not_at_risk() -> None:
    never = Queue("default", preempt_within_queue=PreemptWithin.NEVER)
    assert risks(four_gpus(preemptible=False), standing(classes=HIGH)) == []
    assert risks(four_gpus(), standing(classes=HIGH, highest=9, queue=never)) == []


def test_a_queue_that_may_reclaim_is_a_risk() -> None:
    may = Reclaimers(("a", "b", "c", "d"), "queue default would exceed its GPU quota")
    [risk] = risks(four_gpus(), standing(reclaimers=may, account=evicted(0)))
    assert str(risk) == (
        "queues a, b and 2 more may reclaim the capacity of this job: queue default would exceed"
        " its GPU quota; 1 job of queue default evicted in 7 days"
    )
    assert risks(four_gpus(preemptible=False), standing(reclaimers=may)) == []


def test_the_first_limit_that_a_job_exceeds_by_itself_is_named() -> None:
    queues = {
        "all": Queue("all", limit={"gpu": 3000}),
        "default": Queue("default", "all", limit={"cpu": 1000}),
    }
    assert exceeded_by(four_gpus(), queues) == QueueLimit("all", "gpu", 4000, 3000)
    assert exceeded_by(four_gpus(min_available=3), queues) is None


@pytest.mark.parametrize(
    ("parent", "child", "exceeded"),
    [
        ({"quota": {"gpu": 3000}}, {}, 3000),
        ({}, {"quota": {"gpu": 3000}}, 3000),  # a parent has the sum of the quotas below it
        ({}, {}, 0),  # without a quota, such jobs may use nothing
        ({"quota": {"gpu": 4000}}, {}, None),
        ({"quota": {"cpu": 1000}}, {}, None),  # it does not name GPUs
    ],
)
def test_the_quota_that_a_job_must_stay_within_is_named_if_it_exceeds_it_by_itself(
    parent: dict[str, Any], child: dict[str, Any], exceeded: int | None
) -> None:
    above = Queue("all", non_preemptible_within_quota=True, **parent)
    queues = {"all": above, "default": Queue("default", "all", **child)}
    expected = None if exceeded is None else QueueQuota("all", "gpu", 4000, exceeded)
    assert exceeded_by(four_gpus(preemptible=False), queues) == expected
    assert exceeded_by(four_gpus(), queues) is None
    kept = {
        name: replace(queue, non_preemptible_within_quota=False) for name, queue in queues.items()
    }
    assert exceeded_by(four_gpus(preemptible=False), kept) is None


def test_five_hours_on_four_gpus_without_a_checkpoint_put_seventy_dollars_at_stake() -> None:
    [risk] = risks(four_gpus(time_limit="5h"), standing(classes=HIGH))
    assert isinstance(risk, PreemptionRisk)
    assert risk.at_stake == WorkAtStake(4, 5, 70.0)
    assert str(risk).endswith("; without a checkpoint it loses up to 20 GPU-hours ($70.00)")


@pytest.mark.parametrize("fields", [{"time_limit": "1h"}, {}, {"checkpoint": "each"}])
def test_a_job_that_is_not_known_to_run_long_or_saves_has_nothing_at_stake(
    fields: dict[str, str],
) -> None:
    [risk] = risks(four_gpus(**fields), standing(classes=HIGH))
    assert isinstance(risk, PreemptionRisk)
    assert risk.at_stake is None


def test_work_at_stake_without_gpus_or_prices() -> None:
    assert str(WorkAtStake(0, 5, 0.0)) == "5 hours of work"
    assert str(WorkAtStake(0, 5, 2.0)) == "5 hours of work ($2.00)"
    assert str(WorkAtStake(4, 5, 0.0)) == "20 GPU-hours"


@pytest.mark.parametrize(
    ("value", "endpoint"),
    [
        ("https://s3.example.com/bucket", "https://s3.example.com"),
        ("postgres://user:secret@DB.example.com:5432/x", "postgres://db.example.com:5432"),
        ("a=1,url=http://10.0.0.7:80?x=1", "http://10.0.0.7:80"),
        ("s3://bucket/key", "s3://bucket"),
        ("host=DB.example.com:5432 user=x", "db.example.com:5432"),
        ("10.0.0.7:6379", "10.0.0.7:6379"),
    ],
)
def test_a_url_in_a_variable_is_an_endpoint_to_declare(value: str, endpoint: str) -> None:
    job = spec(role={"env": {"DATA": value, "AGAIN": value}})
    assert undeclared_endpoints(job) == [UndeclaredEndpoint(("DATA", "AGAIN"), endpoint)]
    url = endpoint if "://" in endpoint else f"tcp://{endpoint}"
    declared = spec(role={"env": {"DATA": value}}, external_services={"it": f"{url}/path"})
    assert undeclared_endpoints(declared) == []


def test_a_url_in_a_parameter_of_an_array_is_an_endpoint_to_declare() -> None:
    params = {"hub": ["https://a.example/x", "https://b.example"]}
    job = spec(role={"env": {"HUB": "{hub}"}}, array={"params": params})
    assert undeclared_endpoints(job) == [
        UndeclaredEndpoint(("hub",), "https://a.example"),
        UndeclaredEndpoint(("hub",), "https://b.example"),
    ]


@pytest.mark.parametrize(
    "value",
    [
        "http://localhost:8080",
        "tcp://127.0.0.1:1",
        "http://[::1]/",
        "file:///data",
        "no url",
        "127.0.0.1:8080 train:7 1.2.3 12:30 sha256:00 v1.2:3",
    ],
)
def test_what_stays_on_the_machine_needs_no_declaration(value: str) -> None:
    assert (
        undeclared_endpoints(spec(role={"env": {"A": value, "B": "tcp://$(hosts.worker):1"}})) == []
    )


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({"gpus": 1}, "role worker requests gpus; did you mean gpu?"),
        ({"memory": 32}, "role worker requests 32 bytes of memory; did you mean 32Gi?"),
    ],
)
def test_a_request_that_was_probably_meant_otherwise(
    resources: dict[str, int], sentence: str
) -> None:
    job = spec(role={"resources": resources})
    assert [str(each) for each in unlikely_requests(job, lambda name: False)] == [sentence]


def test_a_resource_that_a_worker_has_or_that_is_like_no_other_is_not_questioned() -> None:
    job = spec(role={"resources": {"gpus": 1, "memory": "1Gi", "licence": 1}})
    assert unlikely_requests(job, lambda name: name == "gpus") == []
