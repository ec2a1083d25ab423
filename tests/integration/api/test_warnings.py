"""Warnings in the answer to a submission and to a question; they refuse nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from msgspec.structs import replace

from phalanx.api.services import Info
from phalanx.core.events import Inventoried, WorkerRegistered
from phalanx.core.model import Protocol
from phalanx.core.settings import CoreSettings
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Running, quick, serving

PRICED = quick(core=replace(CoreSettings(), price={"gpu": 3_500_000}))


def gang(gpus: int = 4, **fields: Any) -> dict[str, Any]:
    role = {"command": "train", "replicas": gpus, "resources": {"gpu": 1}}
    return {"roles": {"worker": role}, **fields}


@pytest_asyncio.fixture
async def warned() -> AsyncIterator[Running]:
    """A server with a class that is higher than most jobs, and four GPUs."""
    store, info = MemoryStore(clock=wall_clock), Info(priority_classes={"high": 10})
    async with serving(store, settings=PRICED, info=info) as running:
        body = {"id": "w-1", "resources": {"gpu": 4}, "slots": 4}
        await running.call("POST", "/workers/register", body)
        yield running


def types(body: dict[str, Any]) -> list[str]:
    return [warning["type"] for warning in body["warnings"]]


async def test_a_job_that_risks_seventy_dollars_is_accepted_with_a_warning(warned: Running) -> None:
    made = await warned.call("POST", "/jobs", gang(time_limit="5h"))
    assert made.status == 201
    [warning] = made.body["warnings"]
    assert (warning["type"], warning["at_stake"]["cost"]) == ("PreemptionRisk", 70.0)
    assert warning["message"] == (
        "this job is low-priority; higher-priority jobs may preempt it (priority class high);"
        " without a checkpoint it loses up to 20 GPU-hours ($70.00)"
    )


async def test_a_job_that_does_not_fit_is_accepted_with_a_warning(warned: Running) -> None:
    made = await warned.call("POST", "/jobs", gang(5, priority=10))
    assert made.status == 201
    assert types(made.body) == ["WillNotStart"]
    assert made.body["warnings"][0]["why"]["short_of"] == "gpu"


async def test_a_worker_that_is_ready_again_is_no_longer_a_reason_for_a_warning(
    server: Running,
) -> None:
    await server.engine.apply(
        WorkerRegistered("w-1", "1", Protocol.SYNC, "w-1.example:1", resources={"gpu": 4000})
    )
    made = await server.call("POST", "/jobs", gang(4))
    assert "w-1 is not ready" in made.body["warnings"][0]["message"]
    await server.engine.apply(Inventoried("w-1", "1", ()))
    assert (await server.call("POST", "/jobs", gang(4))).body["warnings"] == []


async def test_a_gate_beyond_the_cluster_is_a_warning(warned: Running) -> None:
    made = await warned.call("POST", "/jobs", gang(2, priority=10, min_resources={"gpu": 5}))
    assert types(made.body) == ["WillNotStart"]


async def test_a_job_above_its_queues_limit_is_accepted_with_a_warning(warned: Running) -> None:
    await warned.call("PUT", "/queues/all", {"limit": {"gpu": 3}})
    await warned.call("PUT", "/queues/ml", {"parent": "all"})
    made = await warned.call("POST", "/jobs", gang(4, queue="ml", priority=10))
    warning = made.body["warnings"][0]
    told = "the gang needs 4 GPUs, the limit of queue all is 3"
    assert warning["type"] == "WillNotStart"
    assert warning["message"] == f"this job will not start: {told}"
    found = (await warned.call("GET", f"/jobs/{made.body['id']}/why")).body
    assert (found["message"], found["remedy"]) == (
        f"pending: {told}",
        "request less, or raise that limit",
    )
    elastic = await warned.call("POST", "/jobs", gang(4, queue="ml", priority=10, min_available=3))
    assert "WillNotStart" not in types(elastic.body)


async def test_a_job_above_the_quota_that_it_must_stay_within_is_accepted_with_a_warning(
    warned: Running,
) -> None:
    await warned.call("PUT", "/queues/all", {"non_preemptible_within_quota": True})
    await warned.call("PUT", "/queues/ml", {"parent": "all", "quota": {"gpu": 3}})
    job = gang(4, queue="ml", priority=10, preemptible=False)
    made = await warned.call("POST", "/jobs", job)
    [warning] = made.body["warnings"]
    exceeded = "the gang is not preemptible and needs 4 GPUs, the quota of queue all is 3"
    assert warning["type"] == "WillNotStart"
    assert warning["message"] == f"this job will not start: {exceeded}"
    found = (await warned.call("GET", f"/jobs/{made.body['id']}/why")).body
    assert found["message"] == f"pending: {exceeded}"
    preemptible = await warned.call("POST", "/jobs", job | {"preemptible": True})
    assert "WillNotStart" not in types(preemptible.body)


async def test_warnings_about_fit_follow_the_workers(warned: Running) -> None:
    job = gang(5, priority=10)
    assert types((await warned.call("POST", "/jobs", job)).body) == ["WillNotStart"]
    await warned.call(
        "POST", "/workers/register", {"id": "w-2", "resources": {"gpu": 4}, "slots": 4}
    )
    assert types((await warned.call("POST", "/jobs", job)).body) == []


async def test_a_question_is_answered_with_the_same_warnings(warned: Running) -> None:
    asked = await warned.call("POST", "/plan", gang(time_limit="5h"))
    made = await warned.call("POST", "/jobs", gang(time_limit="5h"))
    assert asked.body["warnings"] == made.body["warnings"]


async def test_each_job_of_a_batch_has_its_own_warnings(warned: Running) -> None:
    reply = await warned.call("POST", "/jobs:batch", [gang(1, priority=10), gang(9, priority=10)])
    assert [types(item["job"]) for item in reply.body["results"]] == [[], ["WillNotStart"]]


async def test_submitting_again_with_the_same_key_warns_again(warned: Running) -> None:
    first = await warned.call("POST", "/jobs", gang(), idempotency_key="k")
    again = await warned.call("POST", "/jobs", gang(), idempotency_key="k")
    assert again.status == 200
    assert first.body["warnings"] == again.body["warnings"] != []


async def test_a_queue_that_would_run_above_its_quota_is_named(warned: Running) -> None:
    await warned.call("PUT", "/queues/research", {"quota": {"gpu": 2}})
    await warned.call("PUT", "/queues/vision", {"quota": {"gpu": 2}})
    made = await warned.call("POST", "/jobs", gang(queue="research", priority=10))
    [warning] = made.body["warnings"]
    assert (warning["type"], warning["by"]) == ("ReclaimRisk", ["vision"])
    assert "queue research would exceed its GPU quota" in warning["message"]


async def test_an_endpoint_that_is_not_declared_is_named_in_the_answer(warned: Running) -> None:
    job = gang(1, priority=10)
    job["roles"]["worker"]["env"] = {"DATA": "https://key:secret@s3.example.com/data"}
    [warning] = (await warned.call("POST", "/jobs", job)).body["warnings"]
    assert warning["message"] == (
        "DATA has the endpoint https://s3.example.com, which is not a declared external service;"
        " add it to external_services"
    )
    job["external_services"] = {"s3": "https://s3.example.com"}
    assert (await warned.call("POST", "/plan", job)).body["warnings"] == []
