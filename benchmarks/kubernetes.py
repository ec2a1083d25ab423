"""`phalanx kube scheduler` on a real API server, beside kube-scheduler.

All schedulers take turns on one control plane, so that other load on the machine slows down all of
them. Pods exist before a scheduler starts: the rate is measured from the first to the last bind.
"""

import asyncio
import os
import statistics
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import uvloop

from benchmarks import bare_binds
from benchmarks.contenders import cpu_s
from benchmarks.kube_cluster import NAMESPACE, KubeCluster, kube_cluster, pod
from benchmarks.kube_schedulers import (
    BARE_BINDS,
    NATIVE,
    PHALANX,
    POD_BY_POD,
    PodGang,
    SchedulerKind,
)
from benchmarks.stores import folder_on_disk
from benchmarks.tables import Goal, table
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import NODES, PODS
from phalanx.kube.objects.pod import KubePod

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
GANGS, GANG = 200, 8
STARTS = 20
#: Shortage: gangs, GPUs of a pod, and gangs that fit.
SHORT_GANGS, SHORT_GPUS, SHORT_FIT = 40, 2, 10
SHORT_QUIET_S = 5.0
#: A scheduler that needs longer for all gangs has no rate.
RATE_S = 120.0
#: A scheduler that uses less CPU time in a second has nothing to do.
IDLE_S = 0.1
WAITING = 2_000
#: Nodes and pods for the measurement of memory and start.
SIZE, FULL_SIZE = (500, 5_000), (5_000, 50_000)

RATE = f"{GANGS} gangs of {GANG} on {GANGS} nodes, gangs/s"
CPU_MS = "  CPU time per pod, ms"
SHARE = "  share of the bare binds' rate, %"
AHEAD = "  rate beside kube-scheduler without gangs"
START_MS = f"a gang of {GANG}: from its last pod to its last bind, ms"
START_ABOVE = "  above that of bare binds, ms"
SHORT_WHOLE = f"{SHORT_GANGS} gangs, room for {SHORT_FIT}: whole gangs"
SHORT_PARTIAL = "  gangs bound in part"
SHORT_S = "  from the last pod to the last bind, s"

SHORT = (SHORT_WHOLE, SHORT_PARTIAL, SHORT_S)

GOALS = {
    SHARE: Goal("%", at_least=80),
    AHEAD: Goal("", at_least=1),
    START_MS: Goal("ms", at_most=30),
    START_ABOVE: Goal("ms", at_most=5),
    SHORT_WHOLE: Goal("gangs", at_least=SHORT_FIT),
    SHORT_PARTIAL: Goal("gangs", at_most=0),
    SHORT_S: Goal("s", at_most=1),
}
NOTES = """
  Medians. kube-scheduler binds pod by pod; "its gangs" is its own gang plugin. Bare binds are bind
  calls without a scheduler. The CPU time is that of the scheduler's process, without its start.
"""

_batches = count()

Measurements = dict[tuple[str, str], list[float]]


def run(*, full: bool = False) -> None:
    print("\nKubernetes")
    uvloop.run(_run(full=full))


async def _run(*, full: bool) -> None:
    measured: Measurements = defaultdict(list)
    kinds = (PHALANX, POD_BY_POD, NATIVE, BARE_BINDS)
    with folder_on_disk() as folder:
        async with kube_cluster(folder / "rates") as cluster:
            await cluster.add_nodes(GANGS, GANG)
            starts = {kind.name: await start_cpu_s(kind, cluster, folder) for kind in kinds[:3]}
            for _ in range(ROUNDS):
                for kind in kinds:
                    await measure_rate(kind, cluster, folder, starts, measured)
            for kind in kinds[:3]:
                await measure_starts(kind, cluster, folder, measured)
            await measure_bare_starts(cluster, measured)
            await cluster.remove(NODES)
            await cluster.add_nodes(SHORT_FIT * GANG * SHORT_GPUS // GANG, GANG)
            for kind in kinds[:3]:
                await measure_shortage(kind, cluster, folder, measured)
        show(measured, [kind.name for kind in kinds])
        async with kube_cluster(folder / "waiting", has_kwok=False) as cluster:
            await measure_writes(cluster, folder)
        async with kube_cluster(folder / "size", has_kwok=False) as cluster:
            await measure_size(cluster, folder, *(FULL_SIZE if full else SIZE), full=full)


async def start_cpu_s(kind: SchedulerKind, cluster: KubeCluster, folder: Path) -> float:
    """CPU time of a scheduler that starts, binds one gang, and then has nothing to do."""
    async with cluster.watching() as times:
        with kind.running(cluster, folder) as process:
            await times.until(await kind.create(cluster, gangs(1), mixed=False))
            before_s, spent_s = 0.0, cpu_s(process.pid)
            while spent_s - before_s > IDLE_S:
                await asyncio.sleep(1.0)
                before_s, spent_s = spent_s, cpu_s(process.pid)
    await cluster.remove(PODS)
    return spent_s


def gangs(how_many: int, gpus: int = 1) -> list[PodGang]:
    """Gangs with new names: only a controller removes the finalizer of Kubernetes' PodGroups."""
    batch = next(_batches)
    return [PodGang(f"b{batch}-{number}", GANG, gpus) for number in range(how_many)]


async def measure_rate(
    kind: SchedulerKind,
    cluster: KubeCluster,
    folder: Path,
    starts: dict[str, float],
    measured: Measurements,
) -> None:
    pods = await kind.create(cluster, gangs(GANGS), mixed=False)
    async with cluster.watching() as times:
        with kind.running(cluster, folder) as process:
            is_done = await times.until(pods, RATE_S)
            if is_done and kind.name in starts:
                spent_s = cpu_s(process.pid) - starts[kind.name]
                measured[CPU_MS, kind.name].append(1_000 * max(0.0, spent_s) / pods)
    if is_done:
        measured[RATE, kind.name].append(GANGS / (times.bound[-1] - times.bound[0]))
    else:
        print(f"  {kind.name} bound {len(times.bound):,} of {pods:,} pods in {RATE_S:.0f} s")
    await cluster.remove(PODS)


async def measure_starts(
    kind: SchedulerKind, cluster: KubeCluster, folder: Path, measured: Measurements
) -> None:
    """Gangs that arrive one by one while nothing else happens."""
    async with AsyncExitStack() as stack:
        stack.enter_context(kind.running(cluster, folder))
        times = await stack.enter_async_context(cluster.watching())
        for number in range(STARTS + 1):
            created = await kind.create(cluster, [PodGang(f"s{number}", GANG)], mixed=False)
            began = time.perf_counter()
            if not await times.until((number + 1) * created, RATE_S):
                print(f"  {kind.name} did not bind a gang of {GANG} in {RATE_S:.0f} s")
                break
            await asyncio.sleep(0.2)
            if number:  # the first one may wait for the start of the scheduler
                measured[START_MS, kind.name].append(1_000 * (times.bound[-1] - began))
    await cluster.remove(PODS)


async def measure_bare_starts(cluster: KubeCluster, measured: Measurements) -> None:
    """Gangs that are bound by bind calls alone, from the first call to the last bind."""
    async with cluster.watching() as times:
        for number in range(STARTS + 1):
            gang = PodGang(f"s{number}", GANG)
            created = await BARE_BINDS.create(cluster, [gang], mixed=False)
            began = time.perf_counter()
            binds = ((f"{gang.name}-{n}", f"node-{number}") for n in range(GANG))
            await bare_binds.bind(cluster.client, NAMESPACE, binds)
            await times.until((number + 1) * created)
            await asyncio.sleep(0.2)
            if number:
                measured[START_MS, BARE_BINDS.name].append(1_000 * (times.bound[-1] - began))
    await cluster.remove(PODS)


async def measure_shortage(
    kind: SchedulerKind, cluster: KubeCluster, folder: Path, measured: Measurements
) -> None:
    """More gangs than fit, whose pods are created in turns."""
    async with AsyncExitStack() as stack:
        stack.enter_context(kind.running(cluster, folder))
        times = await stack.enter_async_context(cluster.watching())
        await kind.create(cluster, [PodGang("first", 1)], mixed=False)
        await times.until(1)
        await cluster.remove(PODS)
        await kind.create(cluster, gangs(SHORT_GANGS, SHORT_GPUS), mixed=True)
        began = time.perf_counter()
        await times.until_quiet(SHORT_QUIET_S)
    bound: Counter[str] = Counter()
    for each in await cluster.client.list_all(PODS, None, NAMESPACE):
        bound[each.metadata.name.rpartition("-")[0]] += bool(each.spec.node_name)
    measured[SHORT_WHOLE, kind.name].append(sum(count == GANG for count in bound.values()))
    partial = sum(0 < count < GANG for count in bound.values())
    measured[SHORT_PARTIAL, kind.name].append(partial)
    measured[SHORT_S, kind.name].append(max(0.0, times.bound[-1] - began))
    await cluster.remove(PODS)


def show(measured: Measurements, names: list[str]) -> None:
    rates = {name: statistics.median(measured[RATE, name] or [0]) for name in names}
    ours = rates[PHALANX.name]
    for row, other, scale in ((SHARE, BARE_BINDS, 100), (AHEAD, POD_BY_POD, 1)):
        if rates[other.name]:
            measured[row, PHALANX.name] = [scale * ours / rates[other.name]]
    starts = [measured.get((START_MS, kind.name), []) for kind in (PHALANX, BARE_BINDS)]
    if all(starts):
        measured[START_ABOVE, PHALANX.name] = [
            statistics.median(starts[0]) - statistics.median(starts[1])
        ]
    lines = []
    for what in (RATE, SHARE, AHEAD, CPU_MS, START_MS, START_ABOVE, *SHORT):
        values = [measured.get((what, name), []) for name in names]
        goal = GOALS.get(what)
        verdict = goal.verdict(statistics.median(values[0])) if goal and values[0] else ""
        lines.append((what, *map(_shown, values), verdict))
    table(("measurement", *rates, ""), lines)
    print(NOTES)


def _shown(values: list[float]) -> str:
    return f"{statistics.median(values):,.3g}" if values else "-"


async def measure_writes(cluster: KubeCluster, folder: Path) -> None:
    """A full cluster with waiting gangs: how often each pending pod is written to, beside how often
    the reason that it shows changes."""
    await cluster.add_nodes(4, GANG)
    writes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()

    def note(changes: list[Change[KubePod]]) -> None:
        for before, after in changes:
            if before is not None and after is not None and not after.spec.node_name:
                writes[after.metadata.uid] += 1
                reasons[after.metadata.uid] += _reason(before) != _reason(after)

    await PHALANX.create(cluster, [PodGang("running", 4 * GANG)], mixed=False)
    reflector = Reflector(cluster.client, PODS, note, Selection(NAMESPACE))
    following = asyncio.create_task(reflector.run())
    with PHALANX.running(cluster, folder):
        async with cluster.watching() as times:
            await times.until(4 * GANG)
        waiting = [PodGang(f"w{number}", 2) for number in range(WAITING)]
        pods = await PHALANX.create(cluster, waiting, mixed=False)
        seen = -1
        while len(writes) < pods or seen < writes.total():
            seen = writes.total()
            await asyncio.sleep(5.0)
    following.cancel()
    each = writes.total() / reasons.total()
    rows = [
        (
            f"{WAITING:,} gangs wait on a full cluster: status writes per pod",
            writes.total() / pods,
            "",
        ),
        ("  per pod and change of its reason", each, Goal("", at_most=1).verdict(each)),
    ]
    table(("measurement", "", ""), [(what, f"{value:,.4g}", goal) for what, value, goal in rows])


def _reason(pod: KubePod) -> str:
    """The kind of reason that a pending pod shows."""
    kinds = (each.reason for each in pod.status.conditions if each.type == "PodScheduled")
    return next(kinds, "")


async def measure_size(
    cluster: KubeCluster, folder: Path, nodes: int, pods: int, *, full: bool
) -> None:
    """Memory and start with many nodes and pods that run already."""
    began = time.perf_counter()
    await cluster.add_nodes(nodes, GANG)
    fields = PHALANX.fields
    await cluster.create(
        PODS,
        (
            pod(
                f"p{number}",
                PHALANX.scheduler_name,
                gpus=int(number // nodes < GANG // 2),
                nodeName=f"node-{number % nodes}",
                **fields(PodGang(f"r{number // GANG}", GANG)),
            )
            for number in range(pods)
        ),
    )
    print(f"  loaded {nodes:,} nodes and {pods:,} pods in {time.perf_counter() - began:.0f} s")
    new = PodGang("new", GANG)
    created = await PHALANX.create(cluster, [new], mixed=False)
    labels = ",".join(f"{key}={value}" for key, value in fields(new)["labels"].items())
    async with cluster.watching(labels) as times:
        began = time.perf_counter()
        with PHALANX.running(cluster, folder) as process:
            await times.until(created)
            start_s = times.bound[0] - began
            await asyncio.sleep(5.0)
            memory_mb = _peak_mb(process.pid)
            spent_s = cpu_s(process.pid)
    rows = (
        ("memory at its highest, MB", memory_mb, Goal("MB", at_most=1_000)),
        ("from start to first bind, s", start_s, Goal("s", at_most=10)),
        ("  CPU time of the start, s", spent_s, None),
    )
    lines = [
        (what, f"{value:,.3g}", goal.verdict(value) if goal is not None and full else "")
        for what, value, goal in rows
    ]
    table((f"{nodes:,} nodes and {pods:,} pods", "", ""), lines)


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory")
