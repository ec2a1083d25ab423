"""How well GPUs are packed that tasks share.

A generated workload of the shape of Alibaba's GPU-sharing trace of 2023: a mixed cluster of 2, 4
and 8 GPUs per node, tasks of a part of a GPU or a whole one, and much CPU and memory for each of
them. Tasks arrive until they have requested as many GPUs as there are. GPUs that no task got are
stranded.
"""

import random
import time

from benchmarks.tables import Goal, table
from phalanx.core.node import DEVICE, GPU
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest
from phalanx.plan.placement.trial import PlacementTrial
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable

#: Number of nodes, and GPUs, CPUs and GiB of memory of each.
NODES = (
    *((549, 8, 96, 384), (39, 8, 128, 768), (25, 8, 96, 768), (6, 8, 64, 256)),
    *((20, 4, 96, 384), (40, 4, 32, 128)),
    *((380, 2, 104, 512), (70, 2, 64, 256), (64, 2, 16, 120), (10, 1, 8, 32)),
)
#: Tasks: thousandths of a GPU, CPUs, GiB of memory, and how often they occur.
TASKS = (
    *((0, 32, 48, 6.0), (0, 8, 30, 5.0), (0, 16, 50, 2.3)),
    *((220, 4, 30, 3.0), (320, 4, 22, 9.0), (480, 4, 22, 3.0), (320, 8, 30, 5.0)),
    *((470, 8, 30, 8.0), (650, 8, 30, 3.0), (460, 6, 8, 4.0), (470, 12, 46, 2.8)),
    *((1000, 16, 57, 6.0), (1000, 11, 47, 11.0), (1000, 16, 32, 4.0), (1000, 8, 30, 10.0)),
    *((1000, 12, 76, 3.0), (1000, 12, 20, 8.0), (1000, 18, 63, 1.0), (1000, 4, 24, 3.0)),
    *((1000, 8, 32, 1.0), (2000, 16, 65, 0.2), (4000, 32, 129, 0.2), (8000, 88, 320, 0.5)),
)
SEEDS = 3

_STRANDED = Goal(at_most=5.5, unit="%, as FGD (ATC 2023) on the original")


def stranded(seed: int) -> float:
    """The part of all GPUs that no task got."""
    chance = random.Random(seed)
    nodes = NodeTable()
    for kind, (count, gpus, cpus, memory) in enumerate(NODES):
        size = {"cpu": cpus * 1000, "memory": memory, GPU: gpus * DEVICE}
        for n in range(count):
            nodes.put(f"n{kind}-{n}", NodeSpec(size, {}, {}))
    capacity = FreeCapacity(nodes).fork()
    gangs = [_gang(*task[:3]) for task in TASKS]
    total = int(nodes.capacity[nodes.rows[GPU]].sum())
    arrived = placed = 0
    while arrived < total:
        [kind] = chance.choices(range(len(TASKS)), [task[3] for task in TASKS])
        gpu = TASKS[kind][0]
        arrived += gpu
        placed += gpu if PlacementTrial(gangs[kind], (capacity,)).place_minimum() else 0
    return 1 - placed / total


def _gang(gpu: int, cpus: int, memory: int) -> PendingGang:
    """A gang of one task."""
    amounts = (("cpu", cpus * 1000), ("memory", memory), (GPU, gpu))
    request = TaskRequest(tuple(each for each in amounts if each[1]))
    roles = (RoleRequest("worker", request, (0,), 1),)
    return PendingGang("j", "default/j", 0, "q", 0, 0, size=1, roles=roles, need=1)


def run() -> None:
    """Print what was measured."""
    gpus = sum(count * each for count, each, *_ in NODES)
    nodes = sum(count for count, *_ in NODES)
    print(f"\nShared GPUs: {gpus:,} GPUs on {nodes:,} nodes, {len(TASKS)} kinds of tasks")
    began = time.process_time()
    parts = [stranded(seed) for seed in range(SEEDS)]
    mean = 100 * sum(parts) / SEEDS
    each_s = (time.process_time() - began) / SEEDS
    rows = [(f"stranded GPUs, mean of {SEEDS}", f"{mean:.1f} %", _STRANDED.verdict(mean))]
    rows.append(("  CPU time of each", f"{each_s:.1f} s", ""))
    table(("what", "measured", "goal"), rows)
