"""The tests' own control plane: what it runs, what it refuses, and that nothing of it remains."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from _pytest.outcomes import Failed, Skipped

from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import PODS
from phalanx.kube.objects.pod import KubePod
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes import conftest
from tests.kubernetes.binaries import KWOK, ROOT
from tests.kubernetes.conftest import binary_or_skip
from tests.kubernetes.kubelet import Kubelet, StopTime
from tests.kubernetes.pool import Pool

GPU = "nvidia.com/gpu"


async def reaches(pool: Pool, name: str, phase: str) -> KubePod:
    """The pod, once it is in the phase."""
    pod = await pool.read_pod(name)

    async def has_phase() -> bool:
        nonlocal pod
        pod = await pool.read_pod(name)
        return pod.status.phase == phase

    await eventually(has_phase, PATIENCE_S, lambda: f"pod {name} is {pod.status.phase}")
    return pod


async def is_gone(pool: Pool, name: str) -> bool:
    try:
        await pool.read_pod(name)
    except ApiStatusError as error:
        return error.is_not_found
    return False


@asynccontextmanager
async def kubelet(pool: Pool, stop_time: StopTime = lambda _: 0.0) -> AsyncIterator[None]:
    task = asyncio.create_task(Kubelet(pool, stop_time).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("kwok")
async def test_kwok_runs_pods_until_they_are_told_to_end(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, kubelet="kwok")
    for end in ("Succeeded", "Failed"):
        pod = await pool.create_pod(end.lower())
        await pool.bind(pod, node)
        await reaches(pool, end.lower(), "Running")
        await pool.annotate(end.lower(), {"phalanx.test/end": end})
        await reaches(pool, end.lower(), end)


@pytest.mark.usefixtures("kwok")
async def test_kwok_stops_pods_as_slowly_as_they_ask(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, kubelet="kwok")
    for name, annotations in (("quick", {}), ("slow", {"phalanx.test/stop-after": "1h"})):
        pod = await pool.create_pod(name, annotations=annotations)
        await pool.bind(pod, node)
        await reaches(pool, name, "Running")
        await pool.api.delete(PODS, name, pool.namespace)
    await eventually(lambda: is_gone(pool, "quick"), PATIENCE_S)
    assert (await pool.read_pod("slow")).is_terminating


@pytest.mark.usefixtures("kube_scheduler")
async def test_the_python_kubelet_refuses_what_does_not_fit(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, {"cpu": "2", GPU: "1"}, kubelet="python")
    async with kubelet(pool):
        first = await pool.create_pod("first", requests={"cpu": "1500m", GPU: "1"})
        await pool.bind(first, node)
        await reaches(pool, "first", "Running")
        for name, requests in (("cpu", {"cpu": "600m"}), ("gpu", {GPU: "1"})):
            pod = await pool.create_pod(name, requests=requests)
            await pool.bind(pod, node)
        assert (await reaches(pool, "cpu", "Failed")).status.reason == "OutOfcpu"
        assert (await reaches(pool, "gpu", "Failed")).status.reason == f"OutOf{GPU}"
        # The place of a pod is free when it is gone. kube-scheduler sees the same free places.
        await pool.api.delete(PODS, "first", pool.namespace)
        await eventually(lambda: is_gone(pool, "first"), PATIENCE_S)
        await pool.create_pod("next", requests={GPU: "1"}, schedulerName="default-scheduler")
        assert (await reaches(pool, "next", "Running")).spec.node_name == node


async def test_the_python_kubelet_stops_pods_within_their_grace_period(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, kubelet="python")
    async with kubelet(pool, stop_time=lambda _: 3600.0):
        for name, grace in (("patient", 3600), ("brief", 1)):
            pod = await pool.create_pod(name, terminationGracePeriodSeconds=grace)
            await pool.bind(pod, node)
            await reaches(pool, name, "Running")
            await pool.api.delete(PODS, name, pool.namespace)
        await eventually(lambda: is_gone(pool, "brief"), PATIENCE_S)
        assert (await pool.read_pod("patient")).is_terminating


@pytest.mark.usefixtures("controllers", "kwok")
async def test_controllers_replace_and_count_pods(pool: Pool) -> None:
    [node] = await pool.add_nodes(1, kubelet="kwok")
    template = pool.pod("unused", restartPolicy="Never")
    job = {
        "metadata": {"name": "job"},
        "spec": {"completions": 2, "parallelism": 2, "template": {"spec": template["spec"]}},
    }
    path = f"/apis/batch/v1/namespaces/{pool.namespace}/jobs"
    await pool.api.request("POST", path, job)

    async def members() -> list[KubePod]:
        selector = {"labelSelector": "job-name=job"}
        return await pool.api.list_all(PODS, selector, pool.namespace)

    async def has_two() -> bool:
        return len(await members()) == 2

    await eventually(has_two, PATIENCE_S)
    for pod in await members():
        await pool.bind(pod, node)
        await pool.annotate(pod.metadata.name, {"phalanx.test/end": "Succeeded"})

    async def is_complete() -> bool:
        body = await pool.api.request("GET", f"{path}/job")
        succeeded: int = msgspec.json.decode(body)["status"].get("succeeded", 0)
        return succeeded == 2

    await eventually(is_complete, PATIENCE_S)


USER = """
import pathlib, sys
from tests.kubernetes.shared_server import shared_api_server
print(shared_api_server(pathlib.Path(sys.argv[1])).folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("control_plane_binary")
async def test_nothing_remains_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """Two processes share a control plane. It survives the first, and ends with the second."""
    users = [_start_user(tmp_path) for _ in range(2)]
    try:
        first, second = [await asyncio.to_thread(_line, user) for user in users]
        assert first == second
        servers = _processes(first)
        assert len(servers) == 2  # etcd and kube-apiserver
        users[0].kill()
        users[0].wait()
        assert _processes(first) == servers
    finally:
        for user in users:
            user.kill()
            user.communicate()

    async def have_ended() -> bool:
        return not _processes(str(tmp_path))

    await eventually(have_ended, PATIENCE_S)
    assert not (Path(first) / "etcd").exists()


def _start_user(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", USER, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def _processes(argument: str) -> set[str]:
    """The processes that have the text in their command line."""
    matching = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in (process / "cmdline").read_bytes():
                matching.add(process.name)
    return matching


@pytest.mark.parametrize("is_ci", [True, False])
def test_a_missing_control_plane_is_a_failure_only_where_it_must_be_there(
    tmp_path: Path,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
    is_ci: bool,
) -> None:
    """Without Go and without a package index nothing can be built."""
    monkeypatch.setenv("CI", "true" if is_ci else "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(pytestconfig.option, "no_kubernetes", False)
    monkeypatch.setattr(conftest, "_speaker", lambda _: lambda _line: None)
    outcome = Failed if is_ci else Skipped
    with pytest.raises(outcome, match="could not install a Go compiler"):
        binary_or_skip(pytestconfig, KWOK)


def test_the_control_plane_is_left_out_on_request(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "no_kubernetes", True)
    with pytest.raises(Skipped, match="left out with --no-kubernetes"):
        binary_or_skip(pytestconfig, KWOK)
