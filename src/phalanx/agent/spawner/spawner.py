"""The main loop of the spawner: instructions and exits come in, statuses go out.

It has one thread, runs an attempt at most once, and continues without a link. Every status is in
the journal before it is sent, and the statuses of one turn of the loop are sent together.
"""

from contextlib import suppress
from uuid import uuid4

from phalanx.agent.lease import LeaseFile
from phalanx.agent.messages import (
    AttemptKey,
    AttemptStatus,
    ContainerCalls,
    ForgetAttempt,
    LinkMessage,
    PrepareContainer,
    PrepareStart,
    QuitWhenIdle,
    RunAttempt,
    SpawnerSnapshot,
    StartContainer,
    StopAll,
    StopAttempt,
)
from phalanx.agent.spawner import process_tree
from phalanx.agent.spawner.attempt_errors import AttemptErrors
from phalanx.agent.spawner.child_exits import ChildExits
from phalanx.agent.spawner.container_starts import ContainerStarts
from phalanx.agent.spawner.finished_attempts import FinishedAttempts
from phalanx.agent.spawner.guard import Guard
from phalanx.agent.spawner.journal import Journal
from phalanx.agent.spawner.launch import StartError
from phalanx.agent.spawner.link_server import LinkServer
from phalanx.agent.spawner.poller import Poller
from phalanx.agent.spawner.process_table import ProcessTable
from phalanx.agent.spawner.recovery import recover
from phalanx.agent.state_dir import StateDir
from phalanx.host.clock import boot_time

#: The clock of the poll stops in suspend, so after a resume a timer is late by at most this.
_LONGEST_POLL_S = 1.0


class Spawner:
    def __init__(self, state_dir: StateDir, idle_exit_s: float) -> None:
        """Clean up after an earlier spawner, then accept links."""
        process_tree.become_subreaper()
        self._lease = LeaseFile(state_dir.lease_file)
        self._lease.drop()
        self._guard = Guard(state_dir, self._lease)
        self._journal = Journal(state_dir.journal)
        self._finished = FinishedAttempts(self._journal, recover(state_dir, self._journal))
        self._poller = Poller()
        self._errors = AttemptErrors()
        self._processes = ProcessTable(
            state_dir, self._journal, self._poller, self._ended, self._errors
        )
        self._containers = ContainerStarts(self._processes, self._changed)
        self._child_exits = ChildExits()
        self._poller.watch(self._child_exits.fileno(), self._reap)
        self._incarnation = uuid4().hex
        self._link = LinkServer(state_dir, self._poller, self._snapshot, self._handle)
        self._idle_exit_s = idle_exit_s
        self._active_at = boot_time()  #: when it last had a link or an attempt
        self._is_quitting = False
        self._logged_children: set[int] = set()

    def run(self) -> None:
        """Run until the link asks to quit, or until idle for too long."""
        while not (self._is_quitting and not self._processes and not self._link.has_unsent):
            self._poller.poll(self._poll_timeout_s())
            self._act_on_timers(boot_time())
            with suppress(OSError):  # the disk is full: the next turn tries again
                self._journal.write()
            self._link.flush()
        self._processes.close()

    # Timers

    def _poll_timeout_s(self) -> float:
        due = [attempt.schedule.due_at(self._lease.ends_at) for attempt in self._processes]
        due.append(self._finished.flush_at)
        if not self._is_active:
            due.append(self._active_at + self._idle_exit_s)
        if not self._link.is_connected:
            due.append(boot_time() + _LONGEST_POLL_S)
        times = [at for at in due if at is not None]
        if not times:
            return -1
        return max(0.0, min(min(times) - boot_time(), _LONGEST_POLL_S))

    def _act_on_timers(self, now: float) -> None:
        if self._is_active:
            self._active_at = now
        elif now >= self._active_at + self._idle_exit_s:
            self._is_quitting = True
        self._processes.act_on_schedules(now, self._lease.ends_at)
        self._finished.flush_if_due(now)
        if not self._link.is_connected:
            with self._errors.contained():
                self._link.listen_again_if_removed()

    @property
    def _is_active(self) -> bool:
        return self._link.is_connected or len(self._processes) > 0

    # Messages of the link

    def _snapshot(self, link_count: int) -> SpawnerSnapshot:
        attempts = (*(attempt.status for attempt in self._processes), *self._finished)
        processes = self._processes
        return SpawnerSnapshot(
            self._incarnation, link_count, attempts, processes.unenforced, processes.control_group
        )

    def _handle(self, message: LinkMessage) -> None:
        with self._errors.contained():
            self._follow(message)

    def _follow(self, message: LinkMessage) -> None:
        match message:
            case PrepareStart():
                self._processes.prepare_start()
            case RunAttempt():
                self._run(message)
            case PrepareContainer():
                self._run(message.run, message.calls)
            case StartContainer():
                self._containers.start((message.id, message.epoch))
            case StopAttempt():
                self._stop((message.id, message.epoch))
            case ForgetAttempt():
                self._finished.forget((message.id, message.epoch))
            case StopAll():
                self._stop_all(kill=message.kill)
            case QuitWhenIdle():
                self._is_quitting = True

    def _run(self, run: RunAttempt, calls: ContainerCalls | None = None) -> None:
        """Start an attempt, or prepare its container, unless it was run before."""
        if run.key in self._processes or run.key in self._finished:
            return
        if self._finished.was_forgotten(run.key):
            self._link.publish(AttemptStatus(*run.key, gone=True))
            return
        try:
            if calls is not None:
                self._containers.prepare(run, calls, self._lease.ends_at)
                return
            attempt = self._processes.start(run, self._lease.ends_at)
        except StartError as error:
            status = AttemptStatus(*run.key, start_error=str(error), start_refused=error.is_final)
            self._ended(status)
            return
        except Exception as error:
            self._ended(AttemptStatus(*run.key, start_error=f"error of the worker: {error!r}"))
            raise
        self._link.publish(attempt.status)

    def _stop(self, key: AttemptKey) -> None:
        attempt = self._processes.get(key)
        finished = self._finished.get(key)
        if attempt is not None:
            attempt.stop(boot_time())
        elif finished is not None:
            self._link.publish(finished)
        else:
            # It never ran here. Recording it as gone refuses an instruction to run it later.
            self._ended(AttemptStatus(*key, gone=True))

    def _stop_all(self, *, kill: bool) -> None:
        for attempt in self._processes:
            with self._errors.contained(attempt):
                attempt.stop(boot_time())
                if kill:
                    attempt.kill(boot_time())

    # Ends of attempts

    def _reap(self) -> None:
        exited: set[int] = set()
        for child in self._child_exits.reap():
            if child.pid == self._guard.pid:
                self._guard.restart()
            elif not self._containers.command_ended(child):
                self._processes.record_exit(child, self._lease.ends_at)
            exited.add(child.pid)
        attempts = len(self._processes)
        self._processes.remove_ended()
        # The children of an unknown process become children of this one when it exits.
        if len(self._processes) < attempts or exited & self._logged_children:
            self._logged_children -= exited
            self._log_unknown_children()

    def _log_unknown_children(self) -> None:
        """Log each process that an attempt has left and that cannot be told from any other."""
        for pid in self._processes.unknown_children({self._guard.pid, *self._logged_children}):
            self._logged_children.add(pid)
            self._errors.log(
                f"process {pid} is left of a task that has ended: it has changed its limit"
                " RLIMIT_RSS, by which the worker finds the processes of tasks; kill it by hand"
            )

    def _changed(self, status: AttemptStatus) -> None:
        self._link.publish(status)

    def _ended(self, status: AttemptStatus) -> None:
        self._finished.add(status, boot_time())
        self._link.publish(status)
