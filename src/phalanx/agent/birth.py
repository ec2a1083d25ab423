"""How a process comes into being: forked, set up, and replaced by its program without a shell.

Errors of the child travel over a pipe that closes by itself when the program begins.
"""

import errno
import os
import resource
import signal
from typing import NamedTuple

from phalanx.agent import tree
from phalanx.agent.messages import Run

#: Python ignores these; programs expect them as they are everywhere else.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
_STEP_WORKDIR, _STEP_PROGRAM, _STEP_OTHER = b"w", b"p", b"o"


class Born(NamedTuple):
    pid: int
    verdict: int  #: ends when the program begins; before that it may give an error
    output: int  #: what the attempt writes


def raise_open_files() -> tuple[int, int]:
    """Let the spawner have as many files open as it may; the limits that its tasks are given."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


class Surroundings(NamedTuple):
    """What a process is born into, apart from what its order says."""

    mark: int
    open_files: tuple[int, int]


def spawn(run: Run, around: Surroundings) -> Born:
    """Raises OSError if there can be no process at all."""
    output, writing = os.pipe2(os.O_CLOEXEC)
    verdict, failing = os.pipe2(os.O_CLOEXEC)
    try:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(run, around, parent, writing=writing, failing=failing)
    except OSError:
        os.close(output)
        os.close(verdict)
        raise
    finally:
        os.close(writing)
        os.close(failing)
    os.set_blocking(output, False)
    os.set_blocking(verdict, False)
    return Born(pid, verdict, output)


def _become(run: Run, around: Surroundings, parent: int, *, writing: int, failing: int) -> None:
    """In the child; never returns."""
    step = _STEP_OTHER
    try:
        tree.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        tree.put_on(around.mark)
        resource.setrlimit(resource.RLIMIT_NOFILE, around.open_files)
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        if run.workdir is not None:
            step = _STEP_WORKDIR
            os.chdir(run.workdir)
        step = _STEP_PROGRAM
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        arguments = _arguments(run)
        os.execvpe(arguments[0], arguments, run.env)  # noqa: S606
    except OSError as error:
        os.write(failing, step + str(error.errno or 0).encode())
    except ValueError:  # a NUL in an argument
        os.write(failing, step + str(errno.EINVAL).encode())
    finally:
        os._exit(127)


def _arguments(run: Run) -> tuple[str, ...]:
    return ("/bin/sh", "-c", run.command) if isinstance(run.command, str) else run.command


def failure(run: Run, told: bytes) -> str:
    """What the child said before it gave up, as a sentence."""
    step, why = told[:1], os.strerror(int(told[1:] or b"0"))
    if step == _STEP_WORKDIR:
        return f"the working directory {run.workdir} cannot be entered: {why}"
    if step == _STEP_PROGRAM:
        return f"{_arguments(run)[0]} cannot be run: {why}"
    return f"its process could not be set up: {why}"
