"""The engine's settings. Times are in seconds on the loop's clock."""

import msgspec

from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import SECOND
from phalanx.plan.model import OrderKey, PlannerPolicy


class EngineSettings(msgspec.Struct, frozen=True):
    core: CoreSettings = CoreSettings()
    lease_s: float = 10.0  #: how long a leader leads without renewing its lease
    sync_wait_s: float = 10.0  #: how long an agent's sync is held open at most
    lost_after_s: float = 30.0  #: a worker silent for this long is lost
    plan_tick_s: float = 5.0  #: plan at least this often
    starve_after_s: float = 600.0  #: a gang pending for longer is starving
    max_wait: float = PlannerPolicy().max_wait  #: times its limit and median wait; then overdue
    share_half_life_s: float = 0.0  #: of the memory of unused shares; 0: none
    min_runtime_s: float = 60.0  #: a gang is not reclaimed before it has run for this long
    move_work: float = PlannerPolicy().move_work  #: GPU-seconds that moves for one gang may lose
    move_cooldown_s: float = 3600.0  #: a gang is moved at most once in this time
    order: tuple[OrderKey, ...] = PlannerPolicy().order  #: how the gangs of a queue are ordered
    backfill: bool = True  #: reserve a start time for gangs that do not fit yet
    plan_debounce_s: float = 0.005  #: collect changes for this long after a plan
    turn_limit: int = 1000  #: commands that share one commit at most
    stall_s: float = 1.0  #: a longer pause of the server extends every worker's deadline
    brake_share: float = 0.2  #: the brake stops losses above this share of the workers…
    brake_count: int = 10  #: …and above this number
    brake_window_s: float = 30.0  #: losses within this time count together
    brake_duration_s: float = 300.0  #: how long the brake stops losses
    checkpoint_limit_bytes: int = 16 * 1024**2  #: the largest checkpoint of a task
    submit_rate: int | None = None  #: tasks per second that a namespace can submit
    event_buffer_size: int = 10_000  #: records from which a stream can resume

    @property
    def policy(self) -> PlannerPolicy:
        """The planner's rules."""
        return PlannerPolicy(
            order=self.order,
            starve_after=round(self.starve_after_s * SECOND),
            max_wait=self.max_wait,
            share_half_life=round(self.share_half_life_s * SECOND),
            min_runtime=round(self.min_runtime_s * SECOND),
            move_work=self.move_work,
            move_cooldown=round(self.move_cooldown_s * SECOND),
            backfill=self.backfill,
            plan_every=round(self.plan_tick_s * SECOND),
        )
