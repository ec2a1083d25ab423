"""The clocks of this machine."""

import time


def wall_clock() -> int:
    """The time since 1970 (UTC), in microseconds."""
    return time.time_ns() // 1000


def boot_time() -> float:
    """Seconds since the machine was booted, time in suspend included: for leases and deadlines."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
