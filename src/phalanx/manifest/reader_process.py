"""The process that reads large inputs, so that the server's event loop does not wait for them.

Messages come on standard input and go to standard output, each after its length in four bytes. The
first message to the server is empty: the process is ready. An answer begins with a byte that says
whether the process goes on. The process ends with its input, that is, with the server.
"""

import os
import resource
import sys
from pathlib import Path
from typing import BinaryIO

from phalanx.core.errors import Problem
from phalanx.manifest.reader import ReadRefusal, encode, reply_to, request_from

#: The scheduler of the kernel prefers the server.
_NICE = 10
_LENGTH_BYTES = 4
_NOT_SENDABLE = "the input has a number of more than 64 bits, or half of a surrogate pair"
GOES_ON = b"\1"
#: A process that has used more memory is replaced after its answer.
KEPT_BYTES = 128 * 1024 * 1024


def serve(questions: BinaryIO, answers: BinaryIO, kept_bytes: int = KEPT_BYTES) -> None:
    """Answer every message until the input ends, or the process has used more than `kept_bytes`."""
    send(answers, b"")
    while (question := receive(questions)) is not None:
        try:
            answer = encode(reply_to(request_from(question)))
        except MemoryError:
            answer = encode(ReadRefusal([Problem("", too_costly("memory"))]))
        except (OverflowError, UnicodeEncodeError):
            answer = encode(ReadRefusal([Problem("", _NOT_SENDABLE)]))
        goes_on = most_memory_bytes() <= kept_bytes
        send(answers, (GOES_ON if goes_on else b"\0") + answer)
        if not goes_on:
            return


def most_memory_bytes() -> int:
    """The most memory that this program has used. `getrusage` would also count the server, whose
    memory a new process shares until its program is loaded."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def too_costly(what: str) -> str:
    return f"the input takes too much {what} to read; split it"


def send(stream: BinaryIO, message: bytes) -> None:
    stream.write(framed(message))
    stream.flush()


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


def receive(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    length = stream.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    return stream.read(int.from_bytes(length, "big"))


def main(memory_bytes: int) -> None:
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
