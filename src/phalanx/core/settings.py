"""The settings of the core. The server fills them from its configuration."""

from collections.abc import Mapping

import msgspec

from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros

#: After an abnormal value, how long the reports of the other tasks are waited for.
ALARM_DELAY: Micros = 2 * SECOND


class CoreSettings(msgspec.Struct, frozen=True):
    accept: Micros = 30 * SECOND  #: how long agents have to accept a reservation
    #: How long agents have if images have to be pulled.
    pull: Micros = HOUR
    start: Micros = 30 * SECOND  #: how long a released task has to start
    stop_floor: Micros = 45 * SECOND  #: the shortest time a worker has to report a stop
    stop_slack: Micros = 30 * SECOND  #: how long after the grace period a worker may report a stop
    nomination: Micros = 30 * SECOND  #: how long kept capacity outlasts the stop of its victims
    #: How long after the loss of its worker a fenced task is surely dead.
    fence_slack: Micros = 5 * SECOND + 300_000
    regroup_after: Micros = 10 * MINUTE  #: below its minimum this long, a gang is requeued
    healthy_after: Micros = HOUR  #: an attempt this long clears the count of failures
    shrink_slack: Micros = MINUTE  #: failures this soon after a shrink are not counted
    long_running: Micros = HOUR  #: an attempt this long without saved work is warned about
    backoff_cap: Micros = 5 * MINUTE
    suspect_window: Micros = 10 * MINUTE
    suspect_jobs: int = 3  #: this many jobs failing first on a worker in the window cordon it
    avoid_cap: int = 16  #: the most workers that a job tries last
    price: Mapping[str, int] = {}  #: millionths, for an hour of one of each resource
    #: Unfinished jobs and crons, tasks of unfinished jobs, and bytes of specifications, that a
    #: namespace can have.
    namespace_jobs: int | None = None
    namespace_tasks: int | None = None
    namespace_bytes: int | None = None
    ports: tuple[int, int] = (29500, 32767)  #: rendezvous ports, below the kernel's own range

    def accept_timeout(self, spec: JobSpec) -> Micros:
        """How long agents have to accept a reservation of the job."""
        return max(self.accept, self.pull) if spec.has_images else self.accept

    def stop_timeout(self, grace: Micros) -> Micros:
        return max(self.stop_floor, grace + self.stop_slack)
