"""The process that owns the tasks of a worker: it forks, reaps, stops and remembers them.

It has one thread and one loop, runs an attempt at most once, and goes on without a link. What it
tells is in the journal first; everything that happened in one turn of the loop is told together.
"""

import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from phalanx.agent.lock import Lock
from phalanx.agent.messages import (
    AttemptChanged,
    ForgetAttempt,
    Frames,
    Key,
    Lease,
    Life,
    Order,
    Quit,
    RunAttempt,
    StopAll,
    StopAttempt,
    Told,
    Welcome,
    framed,
    read_order,
)
from phalanx.agent.spawner import cgroups, process_tree
from phalanx.agent.spawner.guard import Guard
from phalanx.agent.spawner.journal import Began, Ended, Forgotten, Journal
from phalanx.agent.spawner.launch import CannotStart, Launcher
from phalanx.agent.spawner.output import Output
from phalanx.agent.spawner.running_attempt import RunningAttempt
from phalanx.agent.state_dir import StateDir, near

#: An end that the server has not acknowledged by then is made to survive the machine.
_FLUSH_S = 1.0
#: Timers may be this late after the machine was suspended.
_TICK_S = 1.0
#: Without a link and without tasks it ends after so long; the next link starts another.
_ALONE_S = 300.0
#: A link that does not read is dropped, and asks anew when it is back.
_UNREAD_BYTES = 4 * 1024**2
_READ_BYTES = 256 * 1024
#: So many attempts are remembered after they were forgotten, to refuse late orders to run them.
_REMEMBERED = 10_000


def now() -> float:
    """Leases are reckoned on the clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Peer:
    """The connection to the link."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.frames = Frames()
        self.unsent = bytearray()

    def push(self) -> bool:
        """Send what there is; whether the link still takes it."""
        while self.unsent:
            try:
                del self.unsent[: self.connection.send(self.unsent)]
            except BlockingIOError:
                return len(self.unsent) <= _UNREAD_BYTES
            except OSError:
                return False
        return True


class Spawner:
    def __init__(self, places: StateDir) -> None:
        self._places = places
        self._journal = Journal(places.journal)
        self._incarnation = uuid4().hex
        self._links = 0
        self._peer: Peer | None = None
        self._attempts: dict[Key, RunningAttempt] = {}
        self._by_pid: dict[int, RunningAttempt] = {}
        self._lingering: set[Key] = set()  #: the first process has gone, others have not
        self._over: dict[Key, Life] = {}
        self._past: dict[str, int] = {}  #: the last epoch of tasks that were forgotten
        self._changed: dict[Key, Life] = {}
        self._unflushed_at: float | None = None
        self._is_quitting = False
        self._heard_at = now()  #: when it last had a link, or something to do
        self._lease: Lease | None = None
        self._children = process_tree.Children()
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._nursery = Launcher()
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._guard: Guard
        self._groups: cgroups.ControlGroups
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._deaths, wake = socket.socketpair()
        self._deaths.setblocking(False)
        wake.setblocking(False)
        self._wake = wake

    # Beginning

    def begin(self) -> None:
        """End what an earlier spawner has left, and take calls."""
        process_tree.become_subreaper()
        self._guard = Guard(self._places)
        began, ended = self._journal.load()
        process_tree.end(began.values(), cgroups.left_by(self._places.group))
        self._groups = cgroups.ControlGroups(self._places.group)
        for life in ended:
            self._over[life.key] = life
        for key in began:
            self._over[key] = Life(*key, gone=True)
            self._journal.add(Ended(self._over[key]))
        self._journal.write()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._places.socket.unlink(missing_ok=True)
        with near(self._places.socket) as name:
            self._listening.bind(name)
        self._listening.listen(8)
        self._read(self._listening.fileno(), self._accept)
        self._read(self._deaths.fileno(), self._reap)

    def _read(self, fd: int, reader: Callable[[], None]) -> None:
        self._readers[fd] = reader
        self._epoll.register(fd, select.EPOLLIN)

    def _unread(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def run(self) -> None:
        while not (self._is_quitting and not self._attempts and self._is_told):
            for fd, _ in self._epoll.poll(self._patience()):
                reader = self._readers.get(fd)
                if reader is not None:
                    reader()
            self._attend()
            self._tell()
        self._groups.close()

    @property
    def _is_told(self) -> bool:
        return self._peer is None or not self._peer.unsent

    def _patience(self) -> float:
        due = [a.due_at for a in self._attempts.values() if a.due_at is not None]
        if self._unflushed_at is not None:
            due.append(self._unflushed_at + _FLUSH_S)
        if self._peer is None and not self._attempts:
            due.append(self._heard_at + _ALONE_S)
        if not due:
            return -1
        return max(0.0, min(min(due) - now(), _TICK_S))

    def _attend(self) -> None:
        at = now()
        if self._peer is not None or self._attempts:
            self._heard_at = at
        elif at >= self._heard_at + _ALONE_S:
            self._is_quitting = True
        for attempt in list(self._attempts.values()):
            if attempt.attend(at) and attempt.is_first_gone:
                # The kernel may have told us of a death before it took it out of its group.
                self._end_if_gone(attempt)
        if self._unflushed_at is not None and at >= self._unflushed_at + _FLUSH_S:
            self._unflushed_at = None
            if any(key not in self._attempts for key in self._over):
                self._journal.flush()

    # The link

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        self._drop_peer()
        self._links += 1
        peer = self._peer = Peer(connection)
        self._read(connection.fileno(), lambda: self._hear(peer))
        lives = [attempt.life for attempt in self._attempts.values()]
        self._changed.clear()
        self._say(Welcome(self._incarnation, self._links, (*lives, *self._over.values())))

    def _drop_peer(self) -> None:
        if self._peer is not None:
            self._unread(self._peer.connection.fileno())
            self._peer.connection.close()
        self._peer = None

    def _hear(self, peer: Peer) -> None:
        try:
            data = peer.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_peer()
        for body in peer.frames.feed(data):
            self._obey(read_order(body))

    def _say(self, message: Told) -> None:
        if self._peer is not None:
            self._peer.unsent += framed(message)
            if not self._peer.push():
                self._drop_peer()

    def _tell(self) -> None:
        """The journal first, then the link."""
        with suppress(OSError):  # a full disk: what could not be written is tried again
            self._journal.write()
        if self._changed:
            lives = tuple(self._changed.values())
            self._changed.clear()
            self._say(AttemptChanged(lives))
        elif not self._is_told and self._peer is not None and not self._peer.push():
            self._drop_peer()

    # Orders

    def _obey(self, order: Order) -> None:
        match order:
            case RunAttempt():
                self._run(order)
            case StopAttempt():
                self._stop((order.id, order.epoch))
            case ForgetAttempt():
                self._forget((order.id, order.epoch))
            case StopAll():
                for attempt in self._attempts.values():
                    attempt.stop(now())
                    if order.kill:
                        attempt.kill(now())
            case Lease():
                self._lease = order
                for attempt in self._attempts.values():
                    attempt.renew(order.sent_at, order.lost_after)
            case Quit():
                self._is_quitting = True

    def _run(self, run: RunAttempt) -> None:
        key = run.key
        if key in self._attempts or key in self._over:
            return
        if self._past.get(run.id, -1) >= run.epoch:
            self._changed[key] = Life(*key, gone=True)
            return
        mark = process_tree.new_mark()
        whole = process_tree.ProcessTree(mark, self._groups.make(key))
        try:
            # Whoever comes after us must be able to find what we are about to start.
            self._journal.add(Began(*key, mark))
            self._journal.write()
            born = self._nursery.spawn(run, whole)
        except CannotStart as error:
            whole.remove_group()
            self._ended(Life(*key, failure=str(error)))
            return
        except OSError as error:
            whole.remove_group()
            self._ended(Life(*key, failure=f"its worker cannot start anything: {error.strerror}"))
            return
        output = Output(self._places, key, born.output, self._nowhere)
        attempt = RunningAttempt(run, whole, born.pid, output, now())
        if self._lease is not None:
            attempt.renew(self._lease.sent_at, self._lease.lost_after)
        self._attempts[key] = self._by_pid[born.pid] = attempt
        self._changed[key] = attempt.life
        self._read(born.output, lambda: self._take_output(attempt))

    def _stop(self, key: Key) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.stop(now())
        elif key not in self._over:
            # It was never run here; from now on it never will be.
            self._ended(Life(*key, gone=True))
        else:
            self._changed[key] = self._over[key]

    def _forget(self, key: Key) -> None:
        if self._over.pop(key, None) is None:
            return
        self._journal.add(Forgotten(*key))
        self._past[key[0]] = max(key[1], self._past.pop(key[0], -1))
        if len(self._past) > _REMEMBERED:
            del self._past[next(iter(self._past))]

    # What becomes of them

    def _take_output(self, attempt: RunningAttempt) -> None:
        if not attempt.output.take(now()):
            self._unread(attempt.output.pipe)

    def _reap(self) -> None:
        self._deaths.recv(_READ_BYTES)
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                break
            if dead is None:
                break
            attempt = self._by_pid.pop(dead.si_pid, None)
            if dead.si_pid == self._guard.pid:
                self._guard.renew()
            elif attempt is not None:
                attempt.first_gone(dead.si_code, dead.si_status)
                self._lingering.add(attempt.life.key)
        for key in list(self._lingering):
            self._end_if_gone(self._attempts[key])

    def _end_if_gone(self, attempt: RunningAttempt) -> None:
        is_left = self._children.left_of(attempt.tree.mark, self._by_pid)
        if is_left or not attempt.tree.remove_group():
            if attempt.kill_at is None:
                # It ended by itself, and what it left behind goes with it.
                attempt.kill(now())
            return
        self._unread(attempt.output.pipe)
        life = attempt.end(now())
        del self._attempts[life.key]
        self._lingering.discard(life.key)
        self._ended(life)

    def _ended(self, life: Life) -> None:
        self._over[life.key] = self._changed[life.key] = life
        self._journal.add(Ended(life))
        if self._unflushed_at is None:
            self._unflushed_at = now()


def main(state: str) -> None:
    """Become the spawner of a state directory, unless there is one."""
    places = StateDir(Path(state))
    lock = Lock.take(places.spawner_lock)
    if lock is None:
        return
    os.chdir("/")
    # Tasks and the terminal's signals are the link's business; ours is to outlive them.
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
    )
    spawner = Spawner(places)
    try:
        spawner.begin()
        spawner.run()
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        lock.release()


if __name__ == "__main__":
    main(sys.argv[1])
