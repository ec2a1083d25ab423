"""Prepares and starts containers: the commands of the runtime run beside the spawner's loop."""

import enum
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from phalanx.agent.messages import AttemptKey, AttemptStatus, ContainerCalls, RunAttempt
from phalanx.agent.spawner.child_exits import ChildExit
from phalanx.agent.spawner.container_attempt import NOT_STARTED, ContainerAttempt
from phalanx.agent.spawner.journal import StartEntry
from phalanx.agent.spawner.launch import StartError, run_command
from phalanx.agent.spawner.process_table import ProcessTable, schedule_of
from phalanx.agent.spawner.process_tree import ProcessTree, monitor_tag
from phalanx.agent.spawner.stop_schedule import LeaseEnd
from phalanx.host.clock import boot_time

_READ_BYTES = 64 * 1024


class _Step(enum.StrEnum):
    PREPARE = "prepare"
    START = "start"
    REMOVE = "remove"


class _Command(NamedTuple):
    step: _Step
    attempt: ContainerAttempt
    output: int  #: the reading end of the pipe that the command writes to


class ContainerStarts:
    def __init__(self, processes: ProcessTable, on_change: Callable[[AttemptStatus], None]) -> None:
        self._processes = processes
        self._on_change = on_change
        self._commands: dict[int, _Command] = {}

    def prepare(self, run: RunAttempt, calls: ContainerCalls, lease_ends_at: LeaseEnd) -> None:
        """Create the processes of a container, which wait. Raises StartError."""
        schedule = schedule_of(run, lease_ends_at)
        tree = ProcessTree(calls.process_tag, self._processes.create_group(run))
        if tree.group is not None:
            tree.group.limit_cpu()
        output, writing_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(output, False)
        try:
            self._processes.record_start(
                StartEntry(
                    *run.key,
                    tree.tag,
                    run.fence,
                    container=True,
                    waiting=True,
                    remove=calls.remove,
                )
            )
            # The container inherits the pipe, or its monitor. What is in it before the program
            # starts is of the runtime.
            pid = run_command(calls.init, writing_end, monitor_tag(tree.tag))
        except BaseException:
            os.close(output)
            tree.remove_group()
            raise
        finally:
            os.close(writing_end)
        writer = self._processes.output_of(run, output)
        attempt = ContainerAttempt(run, calls, tree, writer, schedule)
        self._processes.add(attempt)
        self._began(pid, _Command(_Step.PREPARE, attempt, output))

    def start(self, key: AttemptKey) -> None:
        """Let the program of a prepared container start."""
        attempt = self._processes.get(key)
        if not isinstance(attempt, ContainerAttempt) or not attempt.can_start:
            return
        attempt.starting()
        tag, calls = attempt.tree.tag, attempt.calls
        entry = StartEntry(*key, tag, attempt.run.fence, container=True, remove=calls.remove)
        try:
            self._processes.record_start(entry)
            self._run(_Step.START, calls.start, attempt)
        except StartError as error:
            _fail(attempt, error)

    def _run(self, step: _Step, words: tuple[str, ...], attempt: ContainerAttempt) -> None:
        """Run a command whose output is not that of the task. Raises StartError."""
        output, writing_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(output, False)
        try:
            pid = run_command(words, writing_end, monitor_tag(attempt.tree.tag))
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(writing_end)
        self._began(pid, _Command(step, attempt, output))

    def _began(self, pid: int, command: _Command) -> None:
        command.attempt.command_began(pid)
        self._commands[pid] = command

    def command_ended(self, child: ChildExit) -> bool:
        """Continue after the end of a command; False if the child was none."""
        command = self._commands.pop(child.pid, None)
        if command is None:
            return False
        attempt = command.attempt
        attempt.command_ended()
        text = _available(command.output)
        error = None
        if child.code != os.CLD_EXITED or child.status != 0:
            error = _error(command.step, attempt.calls.runtime, child, text)
        if command.step is _Step.PREPARE:
            self._created(attempt, error)
            return True
        os.close(command.output)
        if command.step is _Step.START:
            self._started(attempt, error)
        if error is not None and (command.step is _Step.START or child.code != os.CLD_EXITED):
            self._prevent_start(attempt)
        return True

    def _created(self, attempt: ContainerAttempt, error: StartError | None) -> None:
        monitor = attempt.created() if error is None else None
        if monitor is None:
            _fail(attempt, error or StartError(NOT_STARTED))
            self._processes.watch_without_main(attempt)
            return
        self._processes.watch_main(attempt, monitor)
        if attempt.schedule.is_stopping:
            attempt.kill(boot_time())
        else:
            self._on_change(attempt.status)

    def _started(self, attempt: ContainerAttempt, error: StartError | None) -> None:
        if error is None:
            attempt.started()
            self._on_change(attempt.status)
        elif attempt.schedule.is_stopping:
            attempt.kill(boot_time())
        else:
            _fail(attempt, error)

    def _prevent_start(self, attempt: ContainerAttempt) -> None:
        """Make sure that a daemon does not start a container after its start has failed: the
        attempt does not end before the daemon has answered."""
        if not attempt.is_under_daemon:
            return
        try:
            self._run(_Step.REMOVE, attempt.calls.remove, attempt)
        except StartError as error:
            attempt.add_problem(str(error))


def _fail(attempt: ContainerAttempt, error: StartError) -> None:
    attempt.failed(str(error), is_final=error.is_final)
    attempt.kill(boot_time())


def _available(pipe: int) -> bytes:
    """What is in a pipe."""
    try:
        return os.read(pipe, _READ_BYTES)
    except BlockingIOError:
        return b""


def _error(step: _Step, runtime: str, child: ChildExit, output: bytes) -> StartError:
    """Why a command failed, in its own words. One that was killed may succeed at another try."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith("Error")] or list(filter(None, lines))[-1:]
    has_exited = child.code == os.CLD_EXITED
    if has_exited:
        ended = f"exited with {child.status}"
    else:
        ended = f"was killed by {signal.Signals(child.status).name}"
    failed = f"cannot {step} the container: {runtime} {ended}"
    why = ": ".join([failed, *(line.removeprefix("Error: ") for line in errors)])
    return StartError(why, is_final=has_exited)
