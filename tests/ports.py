"""Ports for servers that a test starts."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port of this host below those that the system gives to connections, and the tests to gangs:
    either could take it before a server listens there."""
    for port in random.sample(range(10_000, 20_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("100 ports are in use")
