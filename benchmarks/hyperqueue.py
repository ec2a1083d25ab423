"""HyperQueue, for comparison: its server and its workers run in a separate process.

In HyperQueue a task on several nodes is one process: the other nodes are reserved, and starting
processes on them is up to that process. A gang in which every rank runs is therefore a job with as
many tasks, each of which takes a whole worker and starts independently.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contenders import cpu_s


def is_installed() -> bool:
    return importlib.util.find_spec("hyperqueue") is not None


class HyperQueue:
    name = "HyperQueue"

    def __init__(self, server: int, folder: Path) -> None:
        from hyperqueue import Client  # noqa: PLC0415

        self.server = server
        self._client = Client(folder)

    def tasks(self, count: int, command: Sequence[str]) -> None:
        """Submit one job with all tasks; one job per task takes longer."""
        self._finish(self._submit([command] * count))

    def gangs(self, count: int, size: int, command: Sequence[str]) -> None:
        """Submit tasks on several nodes, each of which is one process."""
        self._finish(self._submit([command] * count, nodes=size))

    def ranks(self, size: int, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._finish(self._submit([command] * size, env=env))

    def submit_pending(self, count: int) -> None:
        for _ in range(count):
            self._submit([["true"]], nodes=1_000)

    def _submit(
        self,
        commands: Sequence[Sequence[str]],
        *,
        nodes: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> Any:
        from hyperqueue import Job  # noqa: PLC0415
        from hyperqueue.ffi.protocol import ResourceRequest  # noqa: PLC0415

        request = ResourceRequest(n_nodes=nodes)
        if nodes:
            request.resources = {}  # HyperQueue reserves whole nodes
        job = Job(default_env=dict(env or {}))
        for command in commands:
            job.program(list(command), resources=request, stdout=None, stderr=None)
        return self._client.submit(job).id

    def _finish(self, job: Any) -> None:
        if self._client.connection.wait_for_jobs([job], lambda _: None):
            raise RuntimeError(f"tasks of HyperQueue's job {job} failed")

    def cpu_s(self) -> dict[str, float]:
        return {"total": cpu_s(self.server)}


@contextmanager
def hyperqueue_cluster(folder: Path, workers: int) -> Iterator[HyperQueue]:
    """Run a server and its workers in the block."""
    folder.mkdir()
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "benchmarks.hyperqueue", str(folder), str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.stdout is not None and (line := process.stdout.readline()):
            if line == b"ready\n":
                break
        cluster = HyperQueue(process.pid, folder)
        cluster.ranks(workers, ["true"], {})
        yield cluster
    finally:
        process.kill()
        process.wait()


def _run_cluster(folder: str, workers: int) -> None:
    from hyperqueue import LocalCluster  # noqa: PLC0415
    from hyperqueue.cluster import WorkerConfig  # noqa: PLC0415

    cluster = LocalCluster(folder)
    for _ in range(workers):
        cluster.start_worker(WorkerConfig(cores=1))
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _run_cluster(sys.argv[1], int(sys.argv[2]))
