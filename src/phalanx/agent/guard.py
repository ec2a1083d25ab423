"""A process that does nothing until the spawner dies, and then ends what it leaves behind.

The kernel could only kill the first process of a task with its parent; the guard finds all of them.
"""

import os
from contextlib import suppress

from phalanx.agent import tree
from phalanx.agent.journal import Journal
from phalanx.agent.lock import Lock
from phalanx.agent.places import Places


class Guard:
    def __init__(self, places: Places) -> None:
        self._places = places
        # We never write to it. Its end is our end.
        self._life, self._ours = os.pipe2(os.O_CLOEXEC)
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
        os.dup2(self._life, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        os.read(3, 1)
        lock = Lock.take(self._places.spawner_lock)
        if lock is None:
            return  # there is a new spawner, which does it itself
        began, _ = Journal(self._places.journal).load()
        tree.end(list(began.values()))
        lock.release()
