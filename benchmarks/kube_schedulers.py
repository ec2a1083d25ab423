"""The schedulers that are compared on one API server. Each runs as a process of its own."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kubernetes.binaries import CONTROL_PLANE
from tests.kubernetes.control_plane import ApiServer, start_scheduler
from tests.kubernetes.server_process import ServerProcess

from benchmarks.kube_cluster import NAMESPACE, KubeCluster, pod
from phalanx.kube.api.resources import PODS, pod_groups

NATIVE_GROUPS = pod_groups("scheduling.k8s.io", "v1alpha2")
_GATES = ("GenericWorkload=true", "GangScheduling=true")
_LABEL = "pod-group.scheduling.sigs.k8s.io"


class PodGang(NamedTuple):
    """A gang to be created. Every pod requests so many GPUs."""

    name: str
    size: int
    gpus: int = 1


class SchedulerKind(NamedTuple):
    name: str
    scheduler_name: str
    start: Callable[[ApiServer, Path], ServerProcess]
    #: What the pods of a gang have besides their requests.
    fields: Callable[[PodGang], dict[str, Any]]
    has_groups: bool = False

    @contextmanager
    def running(self, cluster: KubeCluster, folder: Path) -> Iterator[ServerProcess]:
        """Run it in the block. The folder takes its log."""
        process = self.start(cluster.address, folder)
        try:
            yield process
        finally:
            process.stop()

    async def create(self, cluster: KubeCluster, gangs: Iterable[PodGang], *, mixed: bool) -> int:
        """Create gangs, one after the other or one pod of each in turn; the number of pods."""
        gangs = list(gangs)
        if self.has_groups:
            await cluster.create(
                NATIVE_GROUPS,
                (
                    {
                        "metadata": {"name": gang.name},
                        "spec": {"schedulingPolicy": {"gang": {"minCount": gang.size}}},
                    }
                    for gang in gangs
                ),
            )
        members = [(gang, number) for gang in gangs for number in range(gang.size)]
        if mixed:
            members.sort(key=lambda member: member[1])
        await cluster.create(
            PODS,
            (
                pod(f"{gang.name}-{number}", self.scheduler_name, gang.gpus, **self.fields(gang))
                for gang, number in members
            ),
        )
        return len(members)


def _phalanx(api: ApiServer, folder: Path) -> ServerProcess:
    command = [sys.executable, "-m", "phalanx.cli", "kube", "scheduler"]
    command += ["--kubeconfig", str(api.kubeconfig), "--lease-namespace", NAMESPACE]
    return ServerProcess(command, folder / "phalanx.log")


def _bare_binds(api: ApiServer, folder: Path) -> ServerProcess:
    command = [sys.executable, "-m", "benchmarks.bare_binds", str(api.kubeconfig), NAMESPACE]
    return ServerProcess(command, folder / "bare-binds.log")


PHALANX = SchedulerKind(
    "Phalanx",
    "phalanx",
    _phalanx,
    lambda gang: {
        "labels": {f"{_LABEL}/name": gang.name, f"{_LABEL}/min-available": str(gang.size)}
    },
)
POD_BY_POD = SchedulerKind(
    "kube-scheduler",
    "default-scheduler",
    lambda api, folder: start_scheduler(CONTROL_PLANE.path, api, folder),
    lambda _: {},
)
NATIVE = SchedulerKind(
    "its gangs",
    "default-scheduler",
    lambda api, folder: start_scheduler(CONTROL_PLANE.path, api, folder, gates=_GATES),
    lambda gang: {"schedulingGroup": {"podGroupName": gang.name}},
    has_groups=True,
)
BARE_BINDS = SchedulerKind("bare binds", "none", _bare_binds, lambda _: {})
