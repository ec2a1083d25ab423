"""A process that does nothing until the spawner dies, and then ends what it leaves behind.

The kernel could only kill the first process of a task with its parent; the guard finds all of them.
"""

import os
import select
from contextlib import suppress

from phalanx.agent.lock import Lock
from phalanx.agent.spawner import cgroups, process_tree
from phalanx.agent.spawner.journal import Journal
from phalanx.agent.state_dir import StateDir


class Guard:
    def __init__(self, places: StateDir) -> None:
        self._places = places
        # Not a pipe: its end may be seen before our lock is free, and then nobody would do it.
        self._spawner = os.pidfd_open(os.getpid())
        self.pid = self._begin()

    def _begin(self) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._watch()
            finally:
                os._exit(0)
        return pid

    def renew(self) -> None:
        """It was killed: another one takes its place."""
        self.pid = self._begin()

    def _watch(self) -> None:
        """In the child."""
        with suppress(OSError):
            os.setsid()
        # With the spawner's files we would keep its lock, its socket and the pipes of its tasks.
        os.dup2(self._spawner, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        select.select([3], [], [])
        lock = Lock.take(self._places.spawner_lock)
        if lock is None:
            return  # there is a new spawner, which does it itself
        began, _ = Journal(self._places.journal).load()
        process_tree.end(began.values(), cgroups.left_by(self._places.group))
        lock.release()
