"""One command of podman or docker, whose output is read when it has ended."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phalanx.agent.containers.runtime import runtime_environment

_MESSAGE_CHARACTERS = 1000
#: What podman and docker write before a message.
_PREFIXES = ("Error: ", "Error response from daemon: ")


class RuntimeCallError(Exception):
    """A command of the container runtime failed; the message is what it said."""


async def call_runtime(
    command: tuple[str, ...],
    on_line: Callable[[str], None] = lambda _: None,
    open_files: tuple[int, ...] = (),
) -> str:
    """Run a command and return its standard output; `on_line` gets the lines of its messages, and
    the command has these files open, under the same numbers.

    The command is killed if the caller is cancelled. Raises RuntimeCallError.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=runtime_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=open_files,
        )
    except OSError as error:
        raise RuntimeCallError(f"cannot run {command[0]}: {error.strerror}") from None
    if process.stdout is None or process.stderr is None:
        raise AssertionError("bug: a command was started without pipes")
    lines: list[str] = []

    async def read_messages(stream: asyncio.StreamReader) -> None:
        async for line in stream:
            lines.append(line.decode(errors="replace").strip())
            on_line(lines[-1])

    try:
        output, _ = await asyncio.gather(process.stdout.read(), read_messages(process.stderr))
        status = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    if status != 0:
        raise RuntimeCallError(_message(lines) or f"{Path(command[0]).name} exited with {status}")
    return output.decode(errors="replace").strip()


def _message(lines: list[str]) -> str:
    """The error among the lines; podman logs the attempts before it."""
    errors = [
        line.removeprefix(each) for line in lines for each in _PREFIXES if line.startswith(each)
    ]
    text = errors[-1] if errors else "; ".join(lines[-2:])
    return text[:_MESSAGE_CHARACTERS]
