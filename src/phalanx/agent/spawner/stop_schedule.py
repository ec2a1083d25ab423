"""When one attempt has to be stopped and killed: at its time limit, at the end of its lease, and
after its grace.
"""

from phalanx.agent.messages import Lease, RunAttempt
from phalanx.core.time_units import SECOND

#: While a killed process lives on, the kill is repeated at this interval: it may have forked.
_KILL_AGAIN_S = 0.1
#: The server enforces time limits. The spawner does so this much later, if no stop has come.
_TIME_LIMIT_SLACK_S = 5.0
#: A fenced attempt must have ended this long before the server considers its worker lost.
_LEASE_SLACK_S = 2.0


class StopSchedule:
    def __init__(self, run: RunAttempt, now: float) -> None:
        self._grace_s = run.grace / SECOND
        self._is_fenced = run.fence
        self._time_limit_at = (
            None if run.time_limit is None else now + run.time_limit / SECOND + _TIME_LIMIT_SLACK_S
        )
        self._stop_at = self._time_limit_at
        self._kill_at: float | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether the attempt was stopped or killed: what remains to do is to kill it."""
        return self._kill_at is not None

    @property
    def due_at(self) -> float | None:
        """When the attempt has to be stopped or, if it is stopping, killed."""
        return self._stop_at if self._kill_at is None else self._kill_at

    def renew_lease(self, lease: Lease) -> None:
        """Move the stop of a fenced attempt; its grace ends before the lease does."""
        if self._is_fenced:
            stop_at = lease.sent_at + lease.lost_after - self._grace_s - _LEASE_SLACK_S
            limit_at = self._time_limit_at
            self._stop_at = stop_at if limit_at is None else min(limit_at, stop_at)

    def stopped(self, now: float) -> None:
        self._kill_at = now + self._grace_s

    def killed(self, now: float) -> None:
        self._kill_at = now + _KILL_AGAIN_S
