"""One call of podman, whose output is read when it has ended."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from phalanx.agent.containers.runtime import podman_environment

_MESSAGE_CHARACTERS = 1000
#: In the message of podman if an image is not in the storage.
NO_IMAGE = "image not known"


class PodmanError(Exception):
    """A command of podman failed; the message is what podman said."""


async def call_podman(
    command: tuple[str, ...],
    on_line: Callable[[str], None] = lambda _: None,
    open_files: tuple[int, ...] = (),
) -> str:
    """Run a command and return its standard output; `on_line` gets the lines of its messages, and
    the command has these files open, under the same numbers.

    The command is killed if the caller is cancelled. Raises PodmanError.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=podman_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=open_files,
        )
    except OSError as error:
        raise PodmanError(f"cannot run {command[0]}: {error.strerror}") from None
    if process.stdout is None or process.stderr is None:
        raise AssertionError("bug: podman was started without pipes")
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
        raise PodmanError(_message(lines) or f"podman exited with {status}")
    return output.decode(errors="replace").strip()


def _message(lines: list[str]) -> str:
    """The error among the lines; podman logs the attempts before it."""
    errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    text = errors[-1] if errors else "; ".join(lines[-2:])
    return text[:_MESSAGE_CHARACTERS]
