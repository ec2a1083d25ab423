"""The command line: one module per command or noun, listed in `command_table`.

A command starts fast: only its own module is imported, and that imports what the command needs when
the command runs, so that `--help` and completion are quick too.
"""

import errno
import os
import signal
import sys

from phalanx.host.interpreter import start_quickly

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its status: 130 after Ctrl-C."""
    has_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if has_handler:  # not started in the background, where Ctrl-C is ignored
        # An exception in the middle of an import could be lost or printed.
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    start_quickly()
    from phalanx.cli.app import app  # noqa: PLC0415

    try:
        if has_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app(prog_name="phalanx")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Otherwise Python would try to write the rest again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit("phalanx: cannot write the output: no space left on the device")
    finally:
        if has_handler:  # Ctrl-C while Python exits
            signal.signal(signal.SIGINT, signal.SIG_DFL)
