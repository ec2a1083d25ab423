"""One attempt in the hands of the spawner: a tree of processes from its fork until nothing is left.

It is over when its first process and everything that came of it have gone, and not before.
"""

import os
import signal

from msgspec.structs import replace

from phalanx.agent.messages import Life, RunAttempt
from phalanx.agent.spawner.output import Output
from phalanx.agent.spawner.process_tree import ProcessTree, signal_group
from phalanx.core.spec.job import SECOND

#: While something must die and does not, it is killed again this often: it may have forked.
_AGAIN_S = 0.1
_ROUNDS = 10
#: The server ends what is beyond its limit; we do it this much later if nobody told us.
_LIMIT_SLACK_S = 5.0
#: A fenced task must be dead this long before the server may think it lost.
_LEASE_SLACK_S = 2.0


class RunningAttempt:
    def __init__(
        self, run: RunAttempt, tree: ProcessTree, pid: int, output: Output, now: float
    ) -> None:
        self.life = Life(run.id, run.epoch, fence=run.grace if run.fence else None, begun=True)
        self.run = run
        self.pid = pid
        self.tree = tree
        self.output = output
        self._grace_s = run.grace / SECOND
        #: When to ask it to end, if nobody else does; and when to end it.
        self._limit = (
            None if run.time_limit is None else now + run.time_limit / SECOND + _LIMIT_SLACK_S
        )
        self.stop_at = self._limit
        self.kill_at: float | None = None
        self._exit: tuple[int | None, int | None] | None = None

    @property
    def due_at(self) -> float | None:
        """When it next needs attention."""
        return self.stop_at if self.kill_at is None else self.kill_at

    @property
    def is_first_gone(self) -> bool:
        return self._exit is not None

    def renew(self, sent_at: float, lost_after: float) -> None:
        """The server was heard of: the lease runs from when it was asked."""
        if self.run.fence:
            until = sent_at + lost_after - self._grace_s - _LEASE_SLACK_S
            self.stop_at = until if self._limit is None else min(self._limit, until)

    def stop(self, now: float) -> None:
        """Ask every process of it to end; those that have not by then are killed."""
        if self.kill_at is not None:
            return
        self.life = replace(self.life, signalled=True)
        self.kill_at = now + self._grace_s
        if not self.is_first_gone:
            signal_group(self.pid, signal.SIGTERM)
        self.tree.signal(signal.SIGTERM, but_group=self.pid)

    def kill(self, now: float) -> None:
        if not self.is_first_gone:
            signal_group(self.pid, signal.SIGKILL)
        # Whoever forks as fast as it can must not get the time to.
        for _ in range(_ROUNDS):
            if not self.tree.kill():
                break
        self.kill_at = now + _AGAIN_S

    def attend(self, now: float) -> bool:
        """Do what is due; whether anything was."""
        if self.due_at is None or now < self.due_at:
            return False
        if self.kill_at is not None:
            self.kill(now)
        else:
            self.stop(now)
        return True

    def first_gone(self, how: int, status: int) -> None:
        """As waitid tells it: an exit with a code, or a death by a signal."""
        self._exit = (status, None) if how == os.CLD_EXITED else (None, status)

    def end(self, now: float) -> Life:
        """Nothing is left of it."""
        self.output.close(now)
        code, number = self._exit or (None, None)
        self.life = replace(
            self.life, exit_code=code, signal=number, output_bytes=self.output.total_bytes
        )
        return self.life
