"""The hardware of this machine: CPUs, memory, and the GPUs that NVML lists."""

import os
from typing import Any, NamedTuple


class Hardware(NamedTuple):
    resources: dict[str, Any]
    labels: dict[str, str]


def detect() -> Hardware:
    """Resources and labels of this machine, as a worker registers them."""
    resources: dict[str, Any] = {
        "cpu": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }
    labels: dict[str, str] = {}
    gpus = _gpus()
    if gpus:
        model, memory_bytes = gpus[0]
        resources["gpu"] = len(gpus)
        labels["gpu_model"] = "-".join(model.lower().split())
        labels["gpu_memory_mb"] = str(memory_bytes // 1024**2)
    return Hardware(resources, labels)


def _gpus() -> list[tuple[str, int]]:
    """Model and memory size of each GPU; empty without the NVML library or a driver."""
    try:
        import pynvml  # noqa: PLC0415
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return [
            (
                str(pynvml.nvmlDeviceGetName(handle)),
                int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            for handle in handles
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
