"""The start of tasks in containers beside the start of processes, on one worker with podman."""

import io
import os
import shutil
import statistics
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.contenders import Phalanx, phalanx_cluster
from benchmarks.stores import folder_on_disk
from benchmarks.tables import Goal, table

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "10"))
GANG = 4
IMAGE = "localhost/bench:1"
NEEDED = ("podman", "runc", "conmon", "catatonit", "busybox")
GOALS = {"a process": Goal("ms", at_most=50), "a container": Goal("ms", at_most=1_000)}


def run() -> None:
    print("\nContainers")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(f"  not measured: {', '.join(missing) or 'root'} is missing")
        return
    with folder_on_disk() as folder:
        _make_image(folder)
        try:
            with phalanx_cluster(folder / "phalanx", 1) as cluster:
                _measure(cluster)
        finally:
            _podman("rm", "--all", "--force", "--time", "0")
            subprocess.run(["umount", str(folder / "graph/overlay")], capture_output=True)  # noqa: S603, S607, PLW1510


def _measure(cluster: Phalanx) -> None:
    roles: dict[str, dict[str, Any]] = {
        "a process": {"command": ["sleep", "0.3"]},
        "a container": {"command": ["sleep", "0.3"], "image": IMAGE},
    }
    rows = []
    for size in (1, GANG):
        for name, program in roles.items():
            role = program | {"replicas": size, "resources": {"cpu": "10m"}}
            cluster.start_ms(role)  # the first one warms up
            measured = [cluster.start_ms(role) for _ in range(ROUNDS)]
            median = statistics.median(measured)
            what = f"{name}, one task" if size == 1 else f"{name}, gang of {size} tasks"
            rows.append(
                [what, f"{median:,.0f}", f"{max(measured):,.0f}", GOALS[name].verdict(median)]
            )
    table(["from submission until all tasks have started, ms", "median", "most", "goal"], rows)


def _make_image(folder: Path) -> None:
    """Make an image of busybox in a storage of its own, which the worker uses too."""
    conf = folder / "storage.conf"
    conf.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    os.environ["CONTAINERS_STORAGE_CONF"] = str(conf)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(shutil.which("busybox") or "", "bin/busybox")
        link = tarfile.TarInfo("bin/sleep")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(link)
    _podman("import", "-", IMAGE, data=archive.getvalue())


def _podman(*words: str, data: bytes | None = None) -> None:
    command = ("podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", *words)
    subprocess.run(command, input=data, capture_output=True, check=True)  # noqa: S603
