"""How a process comes into being: started by the kernel's short way, without a shell.

What a child inherits is put on by the spawner itself for that moment, so that nothing of ours runs
in the child: that makes a start several times cheaper than a fork.
"""

import errno
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from phalanx.agent.messages import RunAttempt
from phalanx.agent.spawner.process_tree import ProcessTree

#: Python ignores these; programs expect them as they are everywhere else.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


class CannotStart(Exception):  # noqa: N818
    """There is no process; the message says why."""


class LaunchedProcess(NamedTuple):
    pid: int
    output: int  #: what the attempt writes


class Launcher:
    def __init__(self) -> None:
        self._home = os.open("/", os.O_PATH | os.O_CLOEXEC)
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        # A task takes a file or two of ours; its own limit stays what it was.
        self._allow_files(self._open_files[1])

    def _allow_files(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._open_files[1]))

    def spawn(self, run: RunAttempt, tree: ProcessTree) -> LaunchedProcess:
        """Raises CannotStart, and OSError if the machine has no room for it."""
        output, writing = os.pipe2(os.O_CLOEXEC)
        try:
            with self._entered(run.workdir), tree.begun():
                self._allow_files(self._open_files[0])
                pid = _start(run, writing)
        except BaseException:
            os.close(output)
            raise
        finally:
            self._allow_files(self._open_files[1])
            os.close(writing)
        os.set_blocking(output, False)
        return LaunchedProcess(pid, output)

    @contextmanager
    def _entered(self, workdir: str | None) -> Iterator[None]:
        if workdir is None:
            yield
            return
        try:
            os.chdir(workdir)
        except (OSError, ValueError) as error:
            why = f"the working directory {workdir} cannot be entered: {_said(error)}"
            raise CannotStart(why) from None
        try:
            yield
        finally:
            os.fchdir(self._home)


def _start(run: RunAttempt, writing: int) -> int:
    words = ("/bin/sh", "-c", run.command) if isinstance(run.command, str) else run.command
    try:
        return os.posix_spawn(
            _program(words[0], run.env),
            words,
            run.env,
            file_actions=[(os.POSIX_SPAWN_DUP2, writing, fd) for fd in (1, 2)],
            setsid=True,
            setsigmask=(),
            setsigdef=_RESTORED,
        )
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise
        raise CannotStart(f"{words[0]} cannot be run: {_said(error)}") from None


def _program(name: str, env: dict[str, str]) -> str:
    """Where it is, looked for as its own variables say."""
    if "/" in name:
        return name
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return found


def _said(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
