"""A TFJob on Kubernetes that is scheduled whole or not at all, in one command: `make kube-demo`.

The API server, etcd, the controllers of Kubernetes, both schedulers, their rights and the SIGKILL
are real. KWOK plays the nodes, and a stand-in for Kubeflow's operator creates the pods of the
TFJob. The demo removes everything when it ends. Needs a checkout: the control plane is the tests'.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web
from rich.console import Console
from rich.text import Text
from tests.kubernetes.binaries import CONTROL_PLANE, KWOK, CannotBuildError, built
from tests.kubernetes.control_plane import (
    KWOK_NODES,
    ApiServer,
    ControlPlane,
    start_controllers,
    start_kwok,
)
from tests.kubernetes.faulty_proxy import FaultyProxy
from tests.kubernetes.installation import account_kubeconfig, install, installed_scheduler
from tests.kubernetes.scheduler_process import SchedulerProcess
from tests.kubernetes.training_operator import TrainingOperator

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.resources import NODES, PODS
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.views.gangs import condition_of

ROOT = Path(__file__).parents[1]
TFJOB = Path("examples/kubernetes/tfjob.yaml")
URGENT = Path("examples/kubernetes/urgent.yaml")
GPUS = 2
#: Longer than any step takes on a busy machine.
PATIENCE_S = 120.0
#: The scheduler is killed when this many of the five pods are bound.
BOUND_BEFORE_KILL = 2


def say(line: str) -> None:
    text = Text(line)
    text.highlight_regex(r"^\n?\$ kill.*", "bold red")
    text.highlight_regex(r"^\n?\$ (?!kill).*", "bold green")
    text.highlight_regex(r"\bpending\b|\bpartial\b|Unschedulable", "yellow")
    text.highlight_regex(r"\brunning\b", "green")
    text.highlight_regex(r"^\n?All .*", "bold")
    Console(highlight=False, soft_wrap=True).print(text)


class Demo:
    """The steps, on a control plane that runs."""

    def __init__(self, api: ApiServer, client: ApiClient) -> None:
        self._api = api
        self._client = client
        self._nodes = 0

    async def type(self, *words: str) -> None:
        """Run a command of Phalanx, and print it with its output."""
        say(f"\n$ phalanx {' '.join(words)}")
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "phalanx.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=os.environ | {"KUBECONFIG": str(self._api.kubeconfig), "COLUMNS": "80"},
        )
        say((done.stdout + done.stderr).rstrip())

    async def add_nodes(self, count: int) -> None:
        label, _, value = KWOK_NODES.partition("=")
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        for _ in range(count):
            self._nodes += 1
            node = {
                "metadata": {"name": f"node-{self._nodes}", "labels": {label: value}},
                "status": {"allocatable": amounts, "capacity": amounts},
            }
            await self._client.create(NODES, node)

    async def pods(self) -> list[KubePod]:
        return await self._client.list_all(PODS, None, "default")

    async def until(self, is_done: Callable[[list[KubePod]], bool]) -> None:
        async def holds() -> bool:
            return is_done(await self.pods())

        await until(holds)

    async def until_event(self, reason: str, prefix: str, count: int) -> None:
        """Wait for events with this reason about so many pods."""

        async def are_written() -> bool:
            params = {"fieldSelector": f"reason={reason},involvedObject.kind=Pod"}
            path = "/api/v1/namespaces/default/events"
            answer = json.loads(await self._client.request("GET", path, params=params))
            names = {each["involvedObject"]["name"] for each in answer["items"]}
            return len([name for name in names if name.startswith(prefix)]) == count

        await until(are_written)

    async def apply(self, file: Path) -> None:
        """Create the objects of a file."""
        paths = {
            "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
            "Job": "/apis/batch/v1/namespaces/default/jobs",
        }
        for document in yaml.safe_load_all((ROOT / file).read_text()):
            await self._client.request("POST", paths[document["kind"]], document)

    async def end_job(self, name: str) -> None:
        """Let all pods of a gang succeed."""
        for pod in await self.pods():
            if gang_of(pod) == name:
                body = {"metadata": {"annotations": {"phalanx.test/end": "Succeeded"}}}
                await self._client.patch(PODS.path("default", pod.metadata.name), body)


async def until(is_done: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await is_done():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.02)


def gang_of(pod: KubePod) -> str:
    return pod.metadata.labels.get("pod-group.scheduling.sigs.k8s.io/name", "")


def is_running(pods: list[KubePod], gang: str, count: int) -> bool:
    return count == sum(gang_of(p) == gang and p.status.phase == "Running" for p in pods)


def all_have_reasons(pods: list[KubePod], gang: str, count: int) -> bool:
    shown = [p for p in pods if gang_of(p) == gang and not p.spec.node_name]
    conditions = [condition_of(pod, "PodScheduled") for pod in shown]
    kinds = [None if each is None else each.reason for each in conditions]
    return len(shown) == count and set(kinds) == {"Unschedulable"}


def is_bind(request: web.BaseRequest) -> bool:
    return request.path.endswith("/binding")


@asynccontextmanager
async def control_plane(folder: Path) -> AsyncIterator[ApiServer]:
    """etcd, kube-apiserver, the controllers and KWOK, until the end of the block."""
    plane = await asyncio.to_thread(ControlPlane, built(CONTROL_PLANE, say), folder / "plane")
    controllers = start_controllers(CONTROL_PLANE.path, plane.address, folder)
    kwok = start_kwok(built(KWOK, say), plane.address, folder)
    try:
        yield plane.address
    finally:
        for process in (controllers, kwok):
            process.kill()
        plane.stop()


@asynccontextmanager
async def scheduler(kubeconfig: Path, name: str, folder: Path) -> AsyncIterator[SchedulerProcess]:
    running = installed_scheduler(kubeconfig, name, folder / f"{name}.log")

    async def is_ready() -> bool:
        if running.process.ends_within(0):
            raise RuntimeError(f"{name} has ended: {running.log.read_text()}")
        return bool(await running.get("/readyz"))

    try:
        await until(is_ready)
        yield running
    finally:
        running.process.stop()


async def pending_then_running(demo: Demo, operator: TrainingOperator) -> None:
    gang, size = "tf-smoke-gpu", len(operator.names)
    await demo.until(lambda pods: all_have_reasons(pods, gang, size))
    await demo.type("kube", "why", gang)
    say("\nTwo more nodes with 2 GPUs each are added: node-3 and node-4.")
    began = time.monotonic()
    await demo.add_nodes(2)
    await demo.until(lambda pods: is_running(pods, gang, size))
    took = time.monotonic() - began
    await demo.type("kube", "gangs")
    say(f"\nAll {size} pods were running {took:.1f} s after the nodes were added.")


async def eviction(demo: Demo) -> None:
    await demo.type("kube", "plan", "-f", str(URGENT))
    say(f"\n$ kubectl apply -f {URGENT}")
    await demo.apply(URGENT)
    await demo.until(lambda pods: is_running(pods, "urgent", 4))
    await demo.until(lambda pods: all_have_reasons(pods, "tf-smoke-gpu", 5))
    await demo.until_event("Preempted", "tf-smoke-gpu-", 5)
    await demo.type("kube", "gangs")
    await demo.type("kube", "why", "tf-smoke-gpu")


async def kill_in_a_bind(
    demo: Demo, proxy: FaultyProxy, schedulers: dict[str, SchedulerProcess]
) -> None:
    gang = "tf-smoke-gpu"
    passed = 0

    def is_late(request: web.BaseRequest) -> bool:
        nonlocal passed
        passed += is_bind(request)
        return is_bind(request) and passed > BOUND_BEFORE_KILL

    proxy.hold(is_late)
    say("\nThe urgent job ends, and the scheduler binds the TFJob again.")
    await demo.end_job("urgent")
    await demo.until(lambda pods: is_running(pods, gang, BOUND_BEFORE_KILL))
    name = await leader_of(schedulers)
    process = schedulers.pop(name).process
    say(f"\n$ kill -9 {process.pid}    # {name}, after {BOUND_BEFORE_KILL} of 5 binds")
    process.kill()
    killed = time.monotonic()
    await demo.type("kube", "gangs")
    proxy.release()
    await demo.until(lambda pods: is_running(pods, gang, 5))
    took = time.monotonic() - killed
    other = await leader_of(schedulers)
    say(f"\n{other} leads when the lease of {name} has expired, and completes the gang.")
    await demo.type("kube", "gangs")
    say(f"\nAll 5 pods were running {took:.0f} s after the kill.")


async def leader_of(schedulers: dict[str, SchedulerProcess]) -> str:
    leaders: list[str] = []

    async def is_found() -> bool:
        leaders[:] = [name for name, each in schedulers.items() if await each.leads()]
        return len(leaders) == 1

    await until(is_found)
    return leaders[0]


async def run(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(control_plane(folder))
        client = await stack.enter_async_context(ApiClient(find_connection(api.kubeconfig)))
        demo = Demo(api, client)
        await demo.add_nodes(2)
        say(f"A Kubernetes API server is running, with 2 nodes of {GPUS} GPUs each.")
        say("\n$ kubectl apply -k deploy/kubernetes")
        await install(client)
        proxy = await stack.enter_async_context(FaultyProxy(api).serving())
        kubeconfig = await account_kubeconfig(client, api, url=proxy.url)
        schedulers = {}
        for name in ("phalanx-1", "phalanx-2"):
            each = scheduler(kubeconfig, name, folder)
            schedulers[name] = await stack.enter_async_context(each)
            await leader_of(schedulers)
        say("Two schedulers are running: phalanx-1 leads, phalanx-2 stands by.")
        say(f"\n$ kubectl apply -f {TFJOB}")
        operator = TrainingOperator(client, ROOT / TFJOB)
        await stack.enter_async_context(operator)
        say(f"TFJob tf-smoke-gpu: {len(operator.names)} pods, which need 8 GPUs.")
        await pending_then_running(demo, operator)
        await eviction(demo)
        await kill_in_a_bind(demo, proxy, schedulers)


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        try:
            asyncio.run(run(Path(folder)))
        except CannotBuildError as error:
            sys.exit(f"no Kubernetes control plane: {error}")
        except TimeoutError:
            logs = (path.read_text()[-3000:] for path in Path(folder).glob("phalanx-*.log"))
            sys.exit("a step took too long; the schedulers printed:\n" + "\n".join(logs))
    say(f"\nThe demo took {time.monotonic() - began:.0f} s. Everything has been shut down.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
