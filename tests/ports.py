"""Ports for servers that a test starts, and starts again."""

import socket

_kept: list[socket.socket] = []


def free_port() -> int:
    """A port of the loopback address that no other process is given until this one ends.

    A socket that is bound and does not listen keeps it. Servers, which set SO_REUSEADDR, can listen
    there all the same, one after the other.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    _kept.append(bound)
    return int(bound.getsockname()[1])
