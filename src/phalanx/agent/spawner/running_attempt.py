"""An attempt from the start of its main process until none of its processes is left."""

import os
import signal

from msgspec.structs import replace

from phalanx.agent.messages import AttemptStatus, RunAttempt
from phalanx.agent.spawner.cgroup_limits import LimitsReached
from phalanx.agent.spawner.cgroups import ControlGroup
from phalanx.agent.spawner.output import OutputWriter
from phalanx.agent.spawner.process_tree import ProcessTree, signal_process_group
from phalanx.agent.spawner.stop_schedule import LeaseEnd, StopSchedule

#: Rounds of one kill: a process that forks as fast as it can must not get ahead of it.
_KILL_ROUNDS = 10


class RunningAttempt:
    def __init__(
        self,
        run: RunAttempt,
        tree: ProcessTree,
        pid: int | None,
        output: OutputWriter,
        schedule: StopSchedule,
    ) -> None:
        self.status = AttemptStatus(
            run.id,
            run.epoch,
            fence_grace=run.grace if run.fence else None,
            started=pid is not None,
        )
        self.pid = pid  #: of its main process; None as long as there is none
        self.tree = tree
        self.output = output
        self.schedule = schedule
        self._exit: tuple[int | None, int | None] | None = None

    @property
    def has_main_exited(self) -> bool:
        return self._exit is not None

    def stop(self, now: float) -> None:
        """Send SIGTERM to every process; after the grace, the schedule has the attempt killed."""
        if self.schedule.is_stopping:
            return
        self.status = replace(self.status, signalled=True)
        self.schedule.stopped(now)
        self._terminate()

    def _terminate(self) -> None:
        self._signal_main(signal.SIGTERM)
        self.tree.signal(signal.SIGTERM, except_process_group=self.pid)

    def _signal_main(self, number: signal.Signals) -> None:
        if self.pid is not None and not self.has_main_exited:
            signal_process_group(self.pid, number)

    def kill(self, now: float) -> None:
        """Send SIGKILL to every process; the schedule repeats it until none is left."""
        self._signal_main(signal.SIGKILL)
        for _ in range(_KILL_ROUNDS):
            if not self.tree.kill():
                break
        self.schedule.killed(now)

    def act_if_due(self, now: float, lease_ends_at: LeaseEnd) -> bool:
        """Stop or kill the attempt if its schedule says so; whether it did."""
        due_at = self.schedule.due_at(lease_ends_at)
        if due_at is None or now < due_at:
            return False
        if self.schedule.is_stopping:
            self.kill(now)
        else:
            self.stop(now)
        return True

    def main_exited(self, code: int, status: int, *, has_lease: bool) -> None:
        """Record how the main process ended, in `waitid`'s terms.

        Without a lease, it was killed in the place of a spawner that was frozen.
        """
        if not has_lease and code != os.CLD_EXITED:
            self.status = replace(self.status, signalled=True)
        self._exit = (status, None) if code == os.CLD_EXITED else (None, status)

    def note_limits_reached(self) -> None:
        """Note which limits may have ended a main process that failed by itself.

        Has to be called before the control groups are removed.
        """
        if self._exit == (0, None) or self.status.signalled or self.tree.group is None:
            return
        reached = self._limits_reached(self.tree.group)
        if reached.memory_kills:
            self.status = replace(self.status, memory_used=reached.memory_peak_bytes)
        elif reached.refused_processes:
            most = self.tree.group.limits.processes
            note = f"reached its limit of {most} processes and threads"
            self.status = replace(self.status, note=note)

    def _limits_reached(self, group: ControlGroup) -> LimitsReached:
        return group.limits_reached()

    def add_problem(self, message: str) -> None:
        """Report a problem with the attempt, in place of an earlier one."""
        self.status = replace(self.status, problem=message)

    def end(self) -> AttemptStatus:
        """The final status, once no process is left and the output is closed."""
        exit_code, number = self._exit or (None, None)
        self.status = replace(
            self.status, exit_code=exit_code, signal=number, output_bytes=self.output.total_bytes
        )
        return self.status
