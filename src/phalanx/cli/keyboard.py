"""Single keys from a terminal, without waiting for the end of a line."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
}


class Keyboard:
    """The keys that were typed on standard input."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()

    @contextmanager
    def raw(self) -> Iterator["Keyboard"]:
        """Read keys at once and without an echo, until the end of the block."""
        before = termios.tcgetattr(self._fd)
        try:
            tty.setcbreak(self._fd)
            yield self
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)

    def keys(self, timeout_s: float) -> list[str]:
        """The keys that are typed within this time: as soon as there are some, or none.

        A key is a character, or `up`, `down`, `enter`, `escape` or `backspace`.
        """
        ready, _, _ = select.select([self._fd], [], [], timeout_s)
        data = os.read(self._fd, 1024) if ready else b""
        if ready and not data:  # the terminal is gone
            return ["q"]
        return list(_split(data.decode(errors="ignore")))


def _split(text: str) -> Iterator[str]:
    while text:
        size = 3 if text[:3] in _NAMES else 1
        key, text = text[:size], text[size:]
        if key in _NAMES:
            yield _NAMES[key]
        elif key.isprintable():
            yield key
