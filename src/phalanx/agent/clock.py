"""The clock for leases and deadlines. It keeps running while the machine is suspended."""

import time


def boot_time() -> float:
    """Seconds since the machine was booted, time in suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
