"""A child of the spawner that waits for the spawner's death, and then kills what it has left.

The kernel can kill only the main process of a task with its parent; the guard finds all processes.
"""

import os
import select
from contextlib import suppress

from phalanx.agent.process_lock import ProcessLock
from phalanx.agent.spawner.journal import Journal
from phalanx.agent.spawner.recovery import kill_leftovers
from phalanx.agent.state_dir import StateDir


class Guard:
    def __init__(self, state_dir: StateDir) -> None:
        self._state_dir = state_dir
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

    def _watch(self) -> None:
        """Run the guard, in the child."""
        with suppress(OSError):
            os.setsid()
        # The inherited files include the spawner's lock, its socket and the pipes of its tasks.
        os.dup2(self._spawner, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        select.select([3], [], [])
        lock = ProcessLock.acquire(self._state_dir.spawner_lock)
        if lock is None:
            return  # a new spawner has the lock, and cleans up by itself
        journal = Journal(self._state_dir.journal)
        journal.load()
        kill_leftovers(self._state_dir, journal)
        lock.release()
