"""The attempts that have processes: started, their exits recorded, removed when no process is left.

An attempt ends with the last of its processes, not with its main process.
"""

import os
from collections.abc import Callable, Iterator

from phalanx.agent.messages import AttemptKey, AttemptStatus, RunAttempt
from phalanx.agent.spawner.attempt_errors import AttemptErrors
from phalanx.agent.spawner.cgroups import (
    ControlGroup,
    ControlGroups,
    group_of,
    remove_everywhere,
)
from phalanx.agent.spawner.child_exits import ChildExit
from phalanx.agent.spawner.container_attempt import ContainerAttempt
from phalanx.agent.spawner.journal import Journal, StartEntry
from phalanx.agent.spawner.launch import Launcher, StartError
from phalanx.agent.spawner.output import OutputWriter
from phalanx.agent.spawner.poller import Poller
from phalanx.agent.spawner.process_tree import OwnChildren, ProcessTree, new_tag, tagged_pids
from phalanx.agent.spawner.redaction import Redactor
from phalanx.agent.spawner.running_attempt import RunningAttempt
from phalanx.agent.spawner.stop_schedule import LeaseEnd, StopSchedule
from phalanx.agent.state_dir import StateDir
from phalanx.host.clock import boot_time


def schedule_of(run: RunAttempt, lease_ends_at: LeaseEnd) -> StopSchedule:
    """When an attempt that starts now has to be stopped. Raises StartError without a lease."""
    schedule = StopSchedule(run, boot_time())
    if not schedule.has_lease(lease_ends_at, boot_time()):
        raise StartError("the lease of the worker has ended")
    return schedule


class ProcessTable:
    def __init__(
        self,
        state_dir: StateDir,
        journal: Journal,
        poller: Poller,
        on_end: Callable[[AttemptStatus], None],
        errors: AttemptErrors,
    ) -> None:
        self._state_dir = state_dir
        self._journal = journal
        self._poller = poller
        self._on_end = on_end
        self._errors = errors
        self._cgroups = ControlGroups(state_dir.cgroup_file)
        self._launcher = Launcher()
        self._children = OwnChildren()
        self._null_device = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._by_key: dict[AttemptKey, RunningAttempt] = {}
        self._by_main_pid: dict[int, RunningAttempt] = {}
        #: Attempts whose main process has exited and whose other processes may still live.
        self._without_main: dict[AttemptKey, RunningAttempt] = {}

    @property
    def unenforced(self) -> dict[str, str]:
        """By limit that this machine does not enforce: why."""
        return self._cgroups.unenforced

    @property
    def control_group(self) -> str:
        return self._cgroups.name

    def prepare_start(self) -> None:
        """Make the next start quick."""
        self._cgroups.warm_up()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[RunningAttempt]:
        return iter(self._by_key.values())

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._by_key

    def get(self, key: AttemptKey) -> RunningAttempt | None:
        return self._by_key.get(key)

    def start(self, run: RunAttempt, lease_ends_at: LeaseEnd) -> RunningAttempt:
        """Start an attempt that the table does not have. Raises StartError."""
        schedule = schedule_of(run, lease_ends_at)
        tree = ProcessTree(new_tag(), self.create_group(run))
        try:
            self.record_start(StartEntry(*run.key, tree.tag, run.fence))
            process = self._launcher.launch(run, tree)
        except Exception:
            tree.remove_group()
            raise
        output = self.output_of(run, process.output)
        attempt = RunningAttempt(run, tree, process.pid, output, schedule)
        self.add(attempt)
        self.watch_main(attempt, process.pid)
        return attempt

    def output_of(self, run: RunAttempt, pipe: int) -> OutputWriter:
        """The files that the output of an attempt is moved to."""
        redactor = None if run.secrets is None else Redactor(run.secrets.redact)
        return OutputWriter(self._state_dir, run.key, pipe, self._null_device, redactor)

    def add(self, attempt: RunningAttempt) -> None:
        self._by_key[attempt.status.key] = attempt

    def watch_main(self, attempt: RunningAttempt, pid: int) -> None:
        """Wait for the main process, and read the output."""
        self._by_main_pid[pid] = attempt
        try:
            self._poller.watch(attempt.output.pipe, lambda: self._move_output(attempt))
        except OSError as error:
            attempt.add_problem(f"the worker could not read the output: {error.strerror}")
            attempt.kill(boot_time())

    def watch_without_main(self, attempt: RunningAttempt) -> None:
        """Wait only for the rest of an attempt whose main process has exited or never existed."""
        self._without_main[attempt.status.key] = attempt

    def create_group(self, run: RunAttempt) -> ControlGroup | None:
        try:
            return self._cgroups.create(run.key, run.limits)
        except OSError as error:
            raise StartError(
                f"the worker cannot create a control group: {error.strerror}"
            ) from None

    def record_start(self, entry: StartEntry) -> None:
        """Record the tag first, so that a later spawner finds the processes if this one dies.

        Raises StartError.
        """
        self._journal.add(entry)
        try:
            self._journal.write()
        except OSError as error:
            raise StartError(f"the worker cannot write its journal: {error.strerror}") from None

    def _move_output(self, attempt: RunningAttempt) -> None:
        has_more = False
        with self._errors.contained(attempt):
            has_more = attempt.output.move_some(boot_time())
        if not has_more:
            self._poller.unwatch(attempt.output.pipe)

    def record_exit(self, child: ChildExit, lease_ends_at: LeaseEnd) -> None:
        """Record the exit of a main process; exits of other processes change nothing."""
        attempt = self._by_main_pid.pop(child.pid, None)
        if attempt is not None:
            if isinstance(attempt, ContainerAttempt) and child.code != os.CLD_EXITED:
                first_pid = attempt.adopt()
                if first_pid is not None:
                    self._by_main_pid[first_pid] = attempt
                    return
            has_lease = attempt.schedule.has_lease(lease_ends_at, boot_time())
            attempt.main_exited(child.code, child.status, has_lease=has_lease)
            self._without_main[attempt.status.key] = attempt

    def remove_ended(self) -> None:
        """Remove the attempts of which no process is left, and kill what the main process left."""
        self._children.read()
        for attempt in list(self._without_main.values()):
            with self._errors.contained(attempt):
                self._remove_if_ended(attempt)

    def unknown_children(self, known_pids: set[int]) -> list[int]:
        """Other children of the spawner that belong to no attempt."""
        trees = [attempt.tree for attempt in self._by_key.values()]
        return self._children.outside(trees, known_pids.union(self._by_main_pid))

    def act_on_schedules(self, now: float, lease_ends_at: LeaseEnd) -> None:
        """Stop or kill the attempts that are due."""
        for attempt in list(self._by_key.values()):
            with self._errors.contained(attempt):
                if attempt.act_if_due(now, lease_ends_at) and attempt.has_main_exited:
                    # The last SIGCHLD can arrive before the kernel has emptied the control group.
                    self._children.read()
                    self._remove_if_ended(attempt)

    def _remove_if_ended(self, attempt: RunningAttempt) -> None:
        if isinstance(attempt, ContainerAttempt) and attempt.is_busy:
            return
        attempt.note_limits_reached()
        if isinstance(attempt, ContainerAttempt) and attempt.is_under_daemon:
            has_processes = bool(tagged_pids(attempt.tree.tag))
        else:
            has_processes = self._children.has_orphans(attempt.tree.tag, self._by_main_pid)
        if has_processes or not attempt.tree.remove_group():
            if not attempt.schedule.is_stopping:
                attempt.kill(boot_time())
            return
        self._poller.unwatch(attempt.output.pipe)
        with self._errors.contained(attempt):
            attempt.output.close(boot_time())
        if isinstance(attempt, ContainerAttempt):
            remove_everywhere(group_of(self._cgroups.name, attempt.status.key))
        status = attempt.end()
        del self._by_key[status.key]
        del self._without_main[status.key]
        self._on_end(status)

    def close(self) -> None:
        """Remove the worker's control group, after all attempts have ended."""
        self._cgroups.close()
