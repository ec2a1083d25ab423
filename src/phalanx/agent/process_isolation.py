"""Keeps what the agent has from its tasks: its memory, its credentials and its open files."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def isolate_process() -> None:
    """Close this process to other processes of its user, and keep its files from its children.

    Its memory, its environment in /proc and its open files can then be read by root alone. Raises
    OSError.
    """
    if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2:
            with suppress(OSError):  # the descriptor of the listing itself is closed by now
                os.set_inheritable(descriptor, False)


def forbid_new_privileges() -> None:
    """Let this process and its children gain no privileges, for example with sudo. Raises OSError.

    This cannot be undone.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remove_credentials() -> None:
    """Remove credentials from the environment, which child processes would inherit."""
    for name in list(os.environ):
        if name.startswith("PHALANX_") and "TOKEN" in name:
            del os.environ[name]
