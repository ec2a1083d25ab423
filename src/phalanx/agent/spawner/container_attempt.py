"""An attempt in a container: from the creation of its processes until none of them is left.

`init` starts a monitor, a child of the spawner, which waits for the end of the container and exits
with its exit code. `start` lets the program start. podman's `init` also creates the first process,
which becomes a child of the spawner if the monitor is killed. Docker's daemon creates all processes
at the start, and they are never children of the spawner.
"""

import os
import signal
from pathlib import Path

from msgspec.structs import replace

from phalanx.agent.messages import AttemptStatus, ContainerCalls, RunAttempt
from phalanx.agent.spawner.cgroup_limits import LimitsReached
from phalanx.agent.spawner.cgroups import ControlGroup
from phalanx.agent.spawner.memory_kills import MemoryKills
from phalanx.agent.spawner.output import OutputWriter
from phalanx.agent.spawner.process_tree import ProcessTree
from phalanx.agent.spawner.running_attempt import RunningAttempt
from phalanx.agent.spawner.stop_schedule import StopSchedule
from phalanx.agent.task_files import read_short
from phalanx.host.clock import boot_time

NOT_STARTED = "the container ended before its program was started"
#: A command of the runtime that takes longer is killed when its attempt is to be killed.
_COMMAND_LIMIT_S = 30.0
#: A process that was killed by signal N makes its container exit with 128 + N.
_KILLED = 128


class ContainerAttempt(RunningAttempt):
    def __init__(
        self,
        run: RunAttempt,
        calls: ContainerCalls,
        tree: ProcessTree,
        output: OutputWriter,
        schedule: StopSchedule,
    ) -> None:
        super().__init__(run, tree, None, output, schedule)
        self.run = run
        self.calls = calls
        self._command: int | None = None  #: the pid of the command of the runtime that runs
        self._command_began_at = 0.0
        self._first_pid: int | None = None
        self._is_starting = False  #: the program may run
        self._killed_at: float | None = None  #: when it was first killed
        self._memory_kills = MemoryKills(tree.group)

    @property
    def is_busy(self) -> bool:
        """Whether a command of the runtime works on the container."""
        return self._command is not None

    @property
    def is_under_daemon(self) -> bool:
        """Whether a daemon creates the processes, which are never children of the spawner."""
        return bool(self.calls.remove)

    @property
    def can_start(self) -> bool:
        is_waiting = self.status.prepared and not self.status.started and not self.has_main_exited
        return is_waiting and not self.is_busy and not self.schedule.is_stopping

    def command_began(self, pid: int) -> None:
        self._command, self._command_began_at = pid, boot_time()

    def command_ended(self) -> None:
        self._command = None

    def created(self) -> int | None:
        """Take over the processes that `init` has created; the pid of the monitor.

        None if they are gone.
        """
        monitor, first = _pid_in(self.calls.monitor_pid_file), None
        if not self.is_under_daemon:
            first = _pid_in(self.calls.pid_file)
        is_whole = first is not None or self.is_under_daemon
        if monitor is None or not is_whole or not _is_child(monitor):
            return None
        self.pid, self._first_pid = monitor, first
        self.status = replace(self.status, prepared=True)
        return monitor

    def starting(self) -> None:
        """The program starts now, and so does its time limit."""
        self._is_starting = True
        self.schedule = StopSchedule(self.run, boot_time())

    def started(self) -> None:
        self.status = replace(self.status, started=True)
        if self.schedule.is_stopping:
            self._terminate()

    def failed(self, why: str, *, is_final: bool) -> None:
        """The container could not be created or started; its end will say why."""
        self.status = replace(self.status, start_error=why, start_refused=is_final)

    def adopt(self) -> int | None:
        """Take the first process as the main process, after the monitor was killed; its pid."""
        first = self._first_pid
        if first is None or first == self.pid or not _is_child(first):
            return None
        self.pid = first
        return first

    def _terminate(self) -> None:
        if self._is_starting and self.is_busy:
            pass  # as soon as it has started
        elif self._is_starting:
            # The first process only passes the signal on to a process that has received it.
            first = self.tree.first_pid() if self.is_under_daemon else self._first_pid
            self.tree.signal(signal.SIGTERM, except_pid=first)
        else:
            self.kill(boot_time())

    def _signal_main(self, number: signal.Signals) -> None:
        """Kill a command of the runtime that hangs; the monitor ends with the container."""
        if self._command is not None:
            if boot_time() > self._command_began_at + _COMMAND_LIMIT_S:
                os.kill(self._command, number)
        elif self.pid is not None and not self.has_main_exited and self._is_monitor_alone():
            os.kill(self.pid, number)

    def _is_monitor_alone(self) -> bool:
        """Whether a daemon has not started the container, or does not report its end."""
        if not self.is_under_daemon or not self.status.started:
            return self.is_under_daemon
        if self._killed_at is None:
            self._killed_at = boot_time()
        return boot_time() > self._killed_at + _COMMAND_LIMIT_S

    def main_exited(self, code: int, status: int, *, has_lease: bool) -> None:
        super().main_exited(code, status, has_lease=has_lease)
        if self.status.signalled:
            return
        if code == os.CLD_EXITED and status > _KILLED:
            self._note_signal(status - _KILLED)
        elif code != os.CLD_EXITED and self.is_under_daemon:
            note = "the monitor of its container was killed, or lost the Docker daemon"
            self.status = replace(self.status, note=note)

    def _note_signal(self, number: int) -> None:
        try:
            name = signal.Signals(number).name
        except ValueError:
            return
        note = f"exit code {_KILLED + number} of a container usually means {name}"
        self.status = replace(self.status, note=note)

    def _limits_reached(self, group: ControlGroup) -> LimitsReached:
        reached = group.limits_reached()
        kills = reached.memory_kills + self._memory_kills.count()
        return reached._replace(memory_kills=kills)

    def end(self) -> AttemptStatus:
        self._memory_kills.close()
        ended = super().end()
        if not ended.started and not ended.signalled and ended.start_error is None:
            ended = replace(ended, start_error=NOT_STARTED)
        if ended.start_error is not None:
            ended = replace(ended, exit_code=None, signal=None, note="")
        self.status = ended
        return ended


def _pid_in(path: str) -> int | None:
    text = read_short(Path(path)).strip()
    return int(text) if text.isdecimal() else None


def _is_child(pid: int) -> bool:
    """Whether the process is a child of this one that was not reaped yet."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
