"""Starting the main process of an attempt with `posix_spawn`.

The spawner sets the working directory, the control group and the limits that the child inherits on
itself for the moment of the start. No code of ours runs in the child, which makes a start several
times cheaper than a fork.
"""

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from phalanx.agent.messages import RunAttempt, TaskUser
from phalanx.agent.process_isolation import forbid_new_privileges
from phalanx.agent.spawner.process_tree import ProcessTree, tagged

#: Python ignores these signals; other programs expect the default action.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


#: A file that the specification names is missing, or is of the wrong kind.
_MISSING = (errno.ENOENT, errno.ENOTDIR)


class StartError(Exception):
    """The process could not be started; the message says why."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final  #: another try on this worker would fail too


class LaunchedProcess(NamedTuple):
    pid: int
    output: int  #: the reading end of the pipe that the process writes to


def run_command(words: tuple[str, ...], output: int, tag: int) -> int:
    """Start a command of the worker itself, in the worker's own control group, and return its pid.

    It writes to the open file. Raises StartError.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    try:
        with tagged(tag):
            return os.posix_spawn(
                words[0],
                words,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    *((os.POSIX_SPAWN_DUP2, output, fd) for fd in (1, 2)),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=_DEFAULT_SIGNALS,
            )
    except OSError as error:
        raise StartError(f"cannot run {words[0]}: {_text(error)}") from None


class Launcher:
    def __init__(self) -> None:
        self._root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each task costs the spawner one or two open files. Tasks keep the limit as it was.
        self._limit_open_files(self._open_files[1])

    def _limit_open_files(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._open_files[1]))

    def launch(self, run: RunAttempt, tree: ProcessTree) -> LaunchedProcess:
        """Start the main process of an attempt. Raises StartError."""
        try:
            return self._launch(run, tree)
        except OSError as error:
            raise StartError(f"the worker cannot start processes: {_text(error)}") from None

    def _launch(self, run: RunAttempt, tree: ProcessTree) -> LaunchedProcess:
        output, writing_end = os.pipe2(os.O_CLOEXEC)
        try:
            with self._inside(run.workdir, run.user), tree.joined():
                self._limit_open_files(self._open_files[0])
                pid = _start(run, writing_end)
        except BaseException:
            os.close(output)
            raise
        finally:
            self._limit_open_files(self._open_files[1])
            os.close(writing_end)
        os.set_blocking(output, False)
        return LaunchedProcess(pid, output)

    @contextmanager
    def _inside(self, workdir: str | None, user: TaskUser | None) -> Iterator[None]:
        if workdir is None:
            yield
            return
        try:
            if user is None:
                os.chdir(workdir)
            else:
                with _acting_as(user):
                    os.chdir(workdir)
        except (OSError, ValueError) as error:
            why = f"cannot enter the working directory {workdir}: {_text(error)}"
            raise StartError(why, is_final=_is_missing(error)) from None
        try:
            yield
        finally:
            os.fchdir(self._root)


@contextmanager
def _acting_as(user: TaskUser) -> Iterator[None]:
    """Use the file permissions of the user. The real user stays, so that it cannot send signals."""
    own_groups = os.getgroups()
    try:
        os.setgroups(user.groups)
        os.setegid(user.gid)
        os.seteuid(user.uid)
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(os.getgid())
        os.setgroups(own_groups)


def _start(run: RunAttempt, output: int) -> int:
    """Start the program and return its pid. Raises StartError, or OSError if memory is short."""
    words = ("/bin/sh", "-c", run.command) if isinstance(run.command, str) else run.command
    env = run.env if run.secrets is None else run.env | run.secrets.env
    try:
        program = _program(words[0], env, run.user)
        if run.user is not None:
            return _fork(program, words, env, output, run.user)
        return os.posix_spawn(
            program,
            words,
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, output, fd) for fd in (1, 2)],
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise
        why = f"cannot run {words[0]}: {_text(error)}"
        if _is_missing(error) and len(words) == 1 and " " in words[0]:
            why += "; use sh -c to run a shell command line"
        raise StartError(why, is_final=_is_missing(error)) from None


def _is_missing(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _MISSING


def _fork(
    program: str, words: Sequence[str], env: dict[str, str], output: int, user: TaskUser
) -> int:
    """Start the program as another user and return its pid. Raises OSError, ValueError.

    The spawner must not take over the user's ids for the moment of the start, which would be
    quicker: in that moment every process of the user could kill it.
    """
    os.fchown(output, user.uid, user.gid)  # so that it can open /dev/stdout
    process = subprocess.Popen(  # noqa: S603
        words,
        executable=program,
        env=env,
        stdout=output,
        stderr=output,
        user=user.uid,
        group=user.gid,
        extra_groups=user.groups,
        start_new_session=True,
        preexec_fn=_prepare_child,  # noqa: PLW1509 - the spawner has one thread
    )
    process.returncode = 0  # the spawner reaps all its children by itself
    return process.pid


def _prepare_child() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    forbid_new_privileges()


def _program(name: str, env: dict[str, str], user: TaskUser | None) -> str:
    """The path of the program that the user may run, found with the PATH of the task."""
    if "/" in name:
        return name
    folders = env.get("PATH", os.defpath)
    paths = [f"{folder or '.'}/{name}" for folder in folders.split(":")]
    if user is None:
        return _first_program(paths)
    with _acting_as(user):
        return _first_program(paths)


def _first_program(paths: Iterable[str]) -> str:
    for path in paths:
        if os.access(path, os.X_OK, effective_ids=True) and Path(path).is_file():
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _text(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
