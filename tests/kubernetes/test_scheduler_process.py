"""`phalanx kube scheduler` as users run it: two processes, of which one leads."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.kube.api.resources import LEASES
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.binaries import ROOT
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import POOL, Pool
from tests.kubernetes.scheduler_process import SchedulerProcess
from tests.kubernetes.test_scheduler import bound, gang


def scheduler_process(api: ApiServer, pool: Pool, identity: str, log: Path) -> SchedulerProcess:
    """A scheduler for the nodes and the scheduler name of a pool."""
    words = ["kube", "scheduler", "--kubeconfig", str(api.kubeconfig)]
    words += ["--lease-namespace", pool.namespace, "--scheduler-names", pool.namespace]
    words += ["--nodes", f"{POOL}={pool.namespace}"]
    return SchedulerProcess(words, identity, log)


@pytest.fixture
def processes() -> Iterator[list[SchedulerProcess]]:
    started: list[SchedulerProcess] = []
    yield started
    for each in started:
        each.process.kill()


async def test_one_of_two_schedulers_leads_and_the_other_takes_over(
    api_server: ApiServer, pool: Pool, tmp_path: Path, processes: list[SchedulerProcess]
) -> None:
    await pool.add_nodes(1)
    first = scheduler_process(api_server, pool, "first", tmp_path / "first.log")
    processes.append(first)
    await eventually(first.leads, PATIENCE_S, (tmp_path / "first.log").read_text)
    second = scheduler_process(api_server, pool, "second", tmp_path / "second.log")
    processes.append(second)

    async def is_ready() -> bool:
        return bool(await second.get("/readyz"))

    await eventually(is_ready, PATIENCE_S, (tmp_path / "second.log").read_text)
    await logged(tmp_path / "second.log", "standing by", "identity=second", "leader=first")
    for name in ("a-0", "a-1"):
        await pool.create_pod(name, **gang("a", 2))
    await bound(pool, "a-0", "a-1")
    assert not await second.leads()

    async def has_counted_the_gang() -> bool:
        metrics = await first.get("/metrics")
        expected = (
            'phalanx_kube_binds_total{result="bound"} 2.0',
            "phalanx_kube_bind_seconds_count 2.0",
            'phalanx_kube_gangs{queue="default",state="bound"} 1.0',
            "phalanx_kube_incomplete_rounds 0.0",
            "phalanx_kube_overcommitted_nodes 0.0",
        )
        return all(each in metrics for each in expected)

    await eventually(has_counted_the_gang, PATIENCE_S, (tmp_path / "first.log").read_text)
    assert await asyncio.to_thread(first.process.stop) == 0
    await eventually(second.leads, PATIENCE_S)
    await logged(
        *(tmp_path / "second.log", "leading", "after=first", "which='gave the lease back'")
    )
    lease = await pool.api.get(LEASES, "phalanx-scheduler", pool.namespace)
    assert lease.spec.holder_identity == "second"
    for name in ("b-0", "b-1"):
        await pool.create_pod(name, **gang("b", 2))
    await bound(pool, "a-0", "a-1", "b-0", "b-1")


async def logged(log: Path, event: str, *fields: str) -> None:
    """Wait for a line about an event with these fields."""

    async def is_there() -> bool:
        lines = log.read_text().splitlines()
        return any(f"] {event} " in line and all(f in line for f in fields) for line in lines)

    await eventually(is_there, PATIENCE_S, log.read_text)


def test_a_scheduler_that_cannot_start_says_why(api_server: ApiServer, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    status, said = start("--kubeconfig", str(missing))
    assert status == 2
    assert f"cannot read {missing}: No such file or directory" in said
    status, said = start("--kubeconfig", str(api_server.kubeconfig), "--nodes", "pool in a,b")
    assert status == 2
    assert "phalanx: --nodes is 'pool in a,b', which is not a label selector (" in said
    assert "; write it like pool=training or 'zone in (a, b)'" in said


def start(*words: str) -> tuple[int, str]:
    """Run a scheduler that ends at once; its exit status, and what it printed as an error."""
    command = [sys.executable, "-m", "phalanx.cli", "kube", "scheduler", *words]
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.returncode, done.stderr
