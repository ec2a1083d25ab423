"""The log lines and metrics of a gang that fails."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.server.processes import ServerProcess, Start, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.plain_http import async_http_client


async def numbers(client: httpx.AsyncClient) -> dict[str, float]:
    """Every sample of a scrape: `name{label=value}` → value."""
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def post(client: httpx.AsyncClient, path: str, **given: Any) -> Any:
    answer = await client.post(path, **given)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def a_gang_that_breaks(client: httpx.AsyncClient) -> str:
    """Two plain workers run a gang; one task fails, and the other is stopped."""
    for worker in ("w-1", "w-2"):
        await post(client, "/workers/register", json={"id": worker, "resources": {"gpu": 1}})
    gang = {"command": "train", "gang_size": 2, "resources": {"gpu": 1}}
    job: str = (await post(client, "/jobs", json=gang))["id"]
    claims = {}
    for worker in ("w-1", "w-2"):
        claim = await client.get("/jobs/next", params={"worker_id": worker, "wait": 10})
        claims[worker] = claim.json()["id"]
    await post(client, f"/jobs/{claims['w-1']}/fail", params={"worker_id": "w-1"})
    told = await post(client, f"/jobs/{claims['w-2']}/heartbeat", params={"worker_id": "w-2"})
    assert told == {"action": "preempt", "preemption_epoch": 1}
    await post(client, f"/jobs/{claims['w-2']}/preempted", params={"epoch": 1})
    return job


@pytest.fixture
def store(tmp_path: Path) -> str:
    return sqlite_at(tmp_path)


async def led(start: Start, store: str, *flags: str) -> ServerProcess:
    server = await start(store, "only", *flags)
    await server.line("leading")
    return server


async def test_the_log_lines_of_a_stopped_gang_have_fixed_words_and_keys(
    start: Start, store: str
) -> None:
    server = await led(start, store)
    async with async_http_client(server.url) as client:
        job = await a_gang_that_breaks(client)
    reserved = await server.line("gang reserved")
    assert (reserved["gang_id"], reserved["gang_size"]) == (job, 2)
    started = await server.line("gang drain started")
    # The task that failed counts too.
    wanted = {"gang_id": job, "preemption_epoch": 1, "transitioned": 2}
    assert wanted.items() <= started.items()
    assert started["trigger_job_id"] in (f"{job}.0", f"{job}.1")
    preempted = await server.line("job preempted")
    assert preempted["preemption_epoch"] == 1
    assert preempted["job_id"] in {f"{job}.0", f"{job}.1"} - {started["trigger_job_id"]}
    completed = await server.line("gang drain completed")
    wanted = {"gang_id": job, "preemption_epoch": 1, "outcome": "blocked"}
    assert wanted.items() <= completed.items()
    assert server.others == [], "every line is one event"
    assert all({"timestamp", "level", "event"} <= line.keys() for line in server.lines)


async def test_the_metrics_agree_with_the_log(start: Start, store: str) -> None:
    server = await led(start, store)
    async with async_http_client(server.url) as client:
        await a_gang_that_breaks(client)
        found = await numbers(client)
        assert found["phalanx_jobs_submitted_total"] == 1
        assert found["phalanx_tasks_started_total"] == 2
        assert found["phalanx_gangs_preempted_total"] == 1
        assert found["phalanx_gang_preemptions_completed_total{outcome=blocked}"] == 1
        assert found["phalanx_gang_preemptions_completed_total{outcome=failed}"] == 0
        assert found["phalanx_gang_preemptions_force_drained_total"] == 0
        assert found["phalanx_jobs_requeued_total"] == 1
        assert found["phalanx_gang_preemption_drain_seconds_count"] == 1
        assert found["phalanx_job_pending_seconds_count"] >= 1
        assert found["phalanx_gang_start_skew_seconds_count"] == 1
        assert found["phalanx_gpu_seconds_used_total"] > 0
        assert found["phalanx_gpu_seconds_lost_total{cause=failure,queue=default}"] > 0
        assert found["phalanx_commit_seconds_count"] >= 5
        assert found["phalanx_plan_seconds_count"] >= 1
        assert found["phalanx_leader"] == 1

        async def counted() -> bool:
            now = await numbers(client)
            return now.get("phalanx_workers{status=active}") == 2 and any(
                name.startswith("phalanx_jobs{") for name in now
            )

        await eventually(counted, PATIENCE_S)


async def test_stored_and_dropped_output_is_counted(start: Start, store: str) -> None:
    server = await led(start, store, "--output-limit=1Ki")
    async with async_http_client(server.url) as client:
        await post(client, "/workers/register", json={"id": "w-1"})
        await post(client, "/jobs", json={"command": "x"})
        claim = await client.get("/jobs/next", params={"worker_id": "w-1", "wait": 10})
        where = {"task": claim.json()["id"], "attempt": 1}
        for offset in (0, 1000, 2000, 2000):
            params = {**where, "offset": offset}
            await post(client, "/workers/w-1/output", params=params, content=b"x" * 1000)
        found = await numbers(client)
    assert found["phalanx_output_received_bytes_total"] == 3000
    assert found["phalanx_output_dropped_bytes_total"] == 1000


async def test_a_standby_has_metrics(start: Start, store: str) -> None:
    await led(start, store)
    standby = await start(store, "standby")
    await standby.line("standing by")
    async with async_http_client(standby.url) as client:
        found = await numbers(client)
    assert found["phalanx_leader"] == 0
    assert not any(name.startswith("phalanx_jobs{") for name in found)


FAILING = """
import structlog
from phalanx.server import log_output
log_output.set_up(log_output.LogFormat.{form}, log_output.LogLevel.INFO)
def fail(token):
    values = [token]
    raise RuntimeError(f"{{len(values)}} value")
try:
    fail("hidden-" + "4711")
except RuntimeError:
    structlog.get_logger().exception("a part failed")
"""


@pytest.mark.parametrize("form", ["TEXT", "JSON"])
def test_the_traceback_of_an_error_has_no_values_of_variables(form: str) -> None:
    script = FAILING.format(form=form)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    said = done.stdout + done.stderr
    assert "RuntimeError: 1 value" in said
    assert "hidden-4711" not in said
