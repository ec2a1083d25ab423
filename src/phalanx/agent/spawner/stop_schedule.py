"""When one attempt has to be stopped and killed: at its time limit, at the end of its lease, and
after its grace.
"""

from collections.abc import Callable

from phalanx.agent.lease import FENCE_MARGIN_S
from phalanx.agent.messages import RunAttempt
from phalanx.core.time_units import SECOND

#: Reads the end of the worker's lease from its file, which is left out without a fence.
LeaseEnd = Callable[[], float]

#: While a killed process lives on, the kill is repeated at this interval: it may have forked.
_KILL_AGAIN_S = 0.1
#: The server enforces time limits. The spawner does so this much later, if no stop has come.
_TIME_LIMIT_SLACK_S = 5.0


class StopSchedule:
    def __init__(self, run: RunAttempt, now: float) -> None:
        self._grace_s = run.grace / SECOND
        self._is_fenced = run.fence
        self._time_limit_at = (
            None if run.time_limit is None else now + run.time_limit / SECOND + _TIME_LIMIT_SLACK_S
        )
        self._kill_at: float | None = None
        self._kill_again_at: float | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether the attempt was stopped or killed: what remains to do is to kill it."""
        return self._kill_at is not None

    def due_at(self, lease_ends_at: LeaseEnd) -> float | None:
        """When the attempt has to be stopped or, if it is stopping, killed.

        A fenced attempt is stopped so that its grace ends before the lease does. If it is stopped
        late, because the worker was frozen, its grace is shorter.
        """
        if self._kill_again_at is not None:
            return self._kill_again_at
        at = self._kill_at if self.is_stopping else self._time_limit_at
        if not self._is_fenced:
            return at
        lease_at = lease_ends_at() - FENCE_MARGIN_S - (0 if self.is_stopping else self._grace_s)
        return lease_at if at is None else min(at, lease_at)

    def has_lease(self, lease_ends_at: LeaseEnd, now: float) -> bool:
        """Whether the lease leaves time to run: always, without a fence."""
        return not self._is_fenced or now < lease_ends_at() - FENCE_MARGIN_S - self._grace_s

    def stopped(self, now: float) -> None:
        self._kill_at = now + self._grace_s

    def killed(self, now: float) -> None:
        self._kill_at = self._kill_again_at = now + _KILL_AGAIN_S
