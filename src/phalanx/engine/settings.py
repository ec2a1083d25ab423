"""The numbers the engine reckons with. Times are seconds on the loop's own clock."""

import msgspec

from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import SECOND
from phalanx.plan.model import OrderKey, PlannerPolicy


class EngineSettings(msgspec.Struct, frozen=True):
    core: CoreSettings = CoreSettings()
    lease_s: float = 10.0  #: how long a leader leads without renewing
    sync_wait_s: float = 10.0  #: how long a sync is held at most
    lost_after_s: float = 30.0  #: a worker that is silent this long is lost
    plan_tick_s: float = 5.0  #: plan at least this often
    starve_after_s: float = 600.0  #: a gang that waits longer keeps nodes from others
    min_runtime_s: float = 60.0  #: what runs for less is not taken back for another queue
    order: tuple[OrderKey, ...] = PlannerPolicy().order  #: by what gangs of one queue are ordered
    backfill: bool = True  #: keep a start time for those that do not fit yet
    plan_debounce_s: float = 0.005  #: let changes gather this long after a plan
    turn_limit: int = 1000  #: commands that share one commit at most
    stall_s: float = 1.0  #: what takes longer extends every worker's deadline
    brake_share: float = 0.2  #: more than this share of the workers lost at once…
    brake_count: int = 10  #: …and more than this many: nothing is drained for a while
    brake_window_s: float = 30.0
    brake_hold_s: float = 300.0
    ring_size: int = 10_000  #: records that a stream can still be given from memory

    @property
    def policy(self) -> PlannerPolicy:
        """The planner's rules."""
        return PlannerPolicy(
            order=self.order,
            starve_after=round(self.starve_after_s * SECOND),
            min_runtime=round(self.min_runtime_s * SECOND),
            backfill=self.backfill,
        )
