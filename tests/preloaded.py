"""Processes of Phalanx with all modules imported already, which is nearly all that a start costs.

`python -m tests.preloaded` waits for requests of the test process that started it. For each it
forks a process that runs a command line: a child of the test process, with a pid, signals, streams,
variables and an exit of its own. Only `ps` shows another command line. It ends with the test
process.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = (sys.executable, "-m", "phalanx.cli")

#: What a command imports before it does its work. What is missing here only costs time.
_MODULES = {
    "serve": (
        "phalanx.cli.serve",
        "phalanx.server.log_output",
        "phalanx.server.process",
        "phalanx.store.postgres",
        "encodings.idna",
        "litestar.middleware.csrf",
        "litestar.plugins.attrs",
    ),
    "worker": (
        "phalanx.cli.worker",
        "phalanx.cli.container_options",
        "phalanx.agent.hardware",
        "phalanx.agent.worker",
        "phalanx.server.log_output",
        "pynvml",
    ),
    "up": ("phalanx.cli.up", "phalanx.cli.local_cluster"),
}
#: Variables that the interpreter or a library reads when a program starts.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "OPENBLAS_")
_WARNINGS = "PYTHONWARNINGS"
#: The number of the system call `clone`.
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_REQUEST_BYTES = 1 << 18


def start_phalanx(
    *words: str, env: dict[str, str], before: Sequence[str] = (), **options: Any
) -> "subprocess.Popen[Any]":
    """Start a command as Popen does. A program `before` it, such as `prlimit`, gets its words."""
    if before or _read_at_start(env) != _read_at_start(dict(os.environ)):
        return subprocess.Popen([*before, *COMMAND, *words], env=env, **options)  # noqa: S603
    return _ForkedProcess(words, env=env, **options)


def _read_at_start(variables: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_READ_AT_START) and name != _WARNINGS
    }


class _Start(NamedTuple):
    """What a forked process is to be."""

    words: list[str]
    variables: dict[str, str]
    folder: str
    has_own_session: bool


class _ForkedProcess(subprocess.Popen[Any]):
    """A process that is forked where Popen would start a program."""

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        popen: Any = subprocess.Popen
        given = inspect.signature(popen._execute_child).bind(self, args, *others).arguments
        assert not given["preexec_fn"], "a forked process has none"
        assert not given["pass_fds"], "a forked process gets its three streams only"
        pipes = [given[end] for end in ("p2cread", "p2cwrite", "c2pread", "c2pwrite")]
        pipes += [given["errread"], given["errwrite"]]
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        streams = [own if end == -1 else end for own, end in enumerate(ends)]
        folder = str(given["cwd"] or Path.cwd())
        start = _Start([*args], given["env"], folder, bool(given["start_new_session"]))
        try:
            self.pid = _template().fork(start, streams)
            self._child_created = True
        finally:
            popen._close_pipe_fds(self, *pipes)


class _Template:
    """The process with the imported modules, as the test process sees it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        env = {name: value for name, value in os.environ.items() if name != _WARNINGS}
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[1],
            # A fork has only one thread. OpenBLAS would start more.
            env=env | {"OPENBLAS_NUM_THREADS": "1"},
        )
        theirs.close()

    def fork(self, start: _Start, streams: Sequence[int]) -> int:
        """The pid of a new process."""
        with self._turn:
            socket.send_fds(self._requests, [json.dumps(start).encode()], streams)
            answer = self._requests.recv(_REQUEST_BYTES)
        assert answer, "the process with the imported modules has ended; its errors say why"
        return int(answer)


@cache
def _template() -> _Template:
    return _Template()


# In the process with the imported modules


def _fork_on_request(requests: socket.socket) -> None:
    """Fork a process for each request, until the test process has ended. Returns in the forked
    processes only, which go on as if they had just started."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not request:
            sys.exit()
        start = _Start(*json.loads(request))
        for module in _MODULES.get(start.words[0], ()):
            importlib.import_module(module)
        gc.freeze()
        assert len(os.listdir("/proc/self/task")) == 1, "a fork loses the other threads"  # noqa: PTH208
        pid = _fork_sibling()
        if pid == 0:
            requests.detach()
            _become(start, streams)
            return
        for stream in streams:
            os.close(stream)
        requests.send(str(pid).encode())


def _fork_sibling() -> int:
    """As `os.fork`, but the new process is a child of this one's parent, which can wait for it."""
    python = ctypes.pythonapi  # calls keep the lock of the interpreter
    python.syscall.restype = ctypes.c_long
    number = _CLONE[platform.machine()]
    python.PyOS_BeforeFork()
    pid = int(python.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    assert pid >= 0, "the process cannot be forked"
    return pid


def _become(start: _Start, streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if start.has_own_session:
        os.setsid()
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.variables)
    time.tzset()
    if _WARNINGS in os.environ:
        warnings.simplefilter(os.environ[_WARNINGS])  # type: ignore[arg-type]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [COMMAND[-1], *start.words]


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test process, and this one then
    interpreter = importlib.import_module("phalanx.host.interpreter")
    interpreter.start_quickly()
    interpreter.import_structlog()
    importlib.import_module("phalanx.cli.app")
    _fork_on_request(requests)
    importlib.import_module("phalanx.cli").main()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
