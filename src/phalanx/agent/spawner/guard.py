"""A child of the spawner that waits for the spawner's death, and then kills what it has left.

The kernel can kill only the main process of a task with its parent; the guard finds all processes.
While the spawner lives, the guard kills fenced tasks that a frozen spawner leaves past their lease.
"""

import os
import select
from contextlib import suppress

from phalanx.agent.lease import LeaseFile
from phalanx.agent.process_lock import ProcessLock
from phalanx.agent.spawner.journal import Journal
from phalanx.agent.spawner.lease_guard import LEASE_CHECK_S, LeaseGuard
from phalanx.agent.spawner.recovery import kill_leftovers
from phalanx.agent.state_dir import StateDir


class Guard:
    def __init__(self, state_dir: StateDir, lease: LeaseFile) -> None:
        self._state_dir = state_dir
        self._lease = lease
        # A pipe would not do: it can close before the spawner's lock is free, and then the guard
        # would take the dying spawner for a new one.
        self._spawner = os.pidfd_open(os.getpid())
        self.pid = self._fork()

    def _fork(self) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._watch()
            finally:
                os._exit(0)
        return pid

    def restart(self) -> None:
        """Fork another guard, after this one was killed."""
        self.pid = self._fork()

    def _await_death(self) -> None:
        lease = LeaseGuard(self._state_dir, self._lease)
        while not select.select([self._spawner], [], [], LEASE_CHECK_S)[0]:
            with suppress(OSError):  # tried again after the interval
                if lease.is_due():
                    lease.enforce()

    def _watch(self) -> None:
        """Run the guard, in the child."""
        with suppress(OSError):
            os.setsid()
        # The inherited files include the spawner's lock, its socket and the pipes of its tasks.
        first, second = sorted((self._spawner, self._lease.fileno()))
        for start, end in (
            (3, first),
            (first + 1, second),
            (second + 1, os.sysconf("SC_OPEN_MAX")),
        ):
            os.closerange(start, end)
        self._await_death()
        lock = ProcessLock.acquire(self._state_dir.spawner_lock)
        if lock is None:
            return  # a new spawner has the lock, and cleans up by itself
        journal = Journal(self._state_dir.journal)
        journal.load()
        kill_leftovers(self._state_dir, journal)
        lock.release()
