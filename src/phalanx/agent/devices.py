"""What a machine has: its processors and memory, and its GPUs where NVML finds any."""

import os
from typing import Any


class MachineInventory:
    def __init__(self) -> None:
        self.resources: dict[str, Any] = {
            "cpu": len(os.sched_getaffinity(0)),
            "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        }
        self.labels: dict[str, str] = {}
        gpus = _gpus()
        if gpus:
            model, memory_bytes = gpus[0]
            self.resources["gpu"] = len(gpus)
            self.labels["gpu_model"] = "-".join(model.lower().split())
            self.labels["gpu_memory_mb"] = str(memory_bytes // 1024**2)


def _gpus() -> list[tuple[str, int]]:
    """Model and memory of each; none without the library or a driver."""
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
