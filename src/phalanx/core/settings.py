"""The numbers the core reckons with. The server fills them from its configuration."""

from collections.abc import Mapping

import msgspec

from phalanx.core.spec.job import HOUR, MINUTE, SECOND, Micros


class CoreSettings(msgspec.Struct, frozen=True):
    accept: Micros = 30 * SECOND  #: a reservation that is not accepted by then is given back
    start: Micros = 30 * SECOND  #: a released task that has not started by then has failed
    stop_floor: Micros = 45 * SECOND  #: the least time a worker has to report a stop
    stop_slack: Micros = 30 * SECOND  #: the time beyond its grace a worker has to report a stop
    nomination: Micros = 30 * SECOND  #: how long room is kept after its victims have had their time
    #: How long after the loss of its worker a fenced task is surely dead, by whatever clock.
    fence_slack: Micros = 5 * SECOND + 300_000
    regroup_after: Micros = 10 * MINUTE  #: below its minimum this long, a gang is placed again
    healthy_after: Micros = HOUR  #: running this long clears the count of failures
    shrink_slack: Micros = MINUTE  #: siblings failing this long after a shrink are not to blame
    backoff_cap: Micros = 5 * MINUTE
    suspect_window: Micros = 10 * MINUTE
    suspect_jobs: int = 3  #: this many jobs failing first on a worker in the window cordon it
    avoid_cap: int = 16  #: how many workers a job remembers to try last
    price: Mapping[str, int] = {}  #: millionths, for an hour of one of each resource
    ports: tuple[int, int] = (29500, 32767)  #: rendezvous ports, below the kernel's own range

    def stop_timeout(self, grace: Micros) -> Micros:
        return max(self.stop_floor, grace + self.stop_slack)
