"""A ring all-reduce over sockets, in the standard library and Phalanx alone.

In every step each rank contributes a vector, and all ranks add the sum to their state. A step that
was skipped, repeated or done without a rank would show in the final sum. A rank that loses a peer
saves its last complete step; the next attempt resumes from the newest step that any rank saved.
"""

import json
import os
import socket
import sys
import time
from typing import Any, BinaryIO, NamedTuple

from phalanx import task

STEPS = int(os.environ.get("STEPS", "60"))
STEP_S = float(os.environ.get("STEP_S", "0.05"))  #: stands for the computation of a step
TIMEOUT_S = 20.0  #: for a peer that neither answers nor closes the connection

Vector = list[int]
Address = tuple[str, int]


class State(NamedTuple):
    """The state of every rank after a step."""

    step: int
    total: Vector


class Ring:
    """A connection to the next rank, and one from the previous rank."""

    def __init__(self) -> None:
        self.rank, self.size = task.rank(), task.world_size()
        with socket.create_server((task.peers()[self.rank], 0)) as listener:
            addresses = self._exchange_addresses(listener.getsockname())
            self._next = _connect(addresses[(self.rank + 1) % self.size])
            self._previous = _reader(listener.accept()[0])

    def _exchange_addresses(self, own: Address) -> list[Address]:
        """The addresses of all ranks. Rank 0 collects and distributes them."""
        master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank:
            with _connect(master) as connection:
                _send(connection, [self.rank, own])
                return [(host, port) for host, port in _receive(_reader(connection))]
        by_rank = {0: own}
        with socket.create_server(master, backlog=self.size) as listener:
            connections = [listener.accept()[0] for _ in range(1, self.size)]
        for connection in connections:
            rank, address = _receive(_reader(connection))
            by_rank[rank] = address
        addresses = [by_rank[rank] for rank in range(self.size)]
        for connection in connections:
            _send(connection, addresses)
            connection.close()
        return addresses

    def shift(self, value: object) -> Any:
        """Send a value to the next rank, and return the value of the previous rank."""
        _send(self._next, value)
        return _receive(self._previous)

    def all_reduce(self, own: Vector) -> Vector:
        """The sum over all ranks. Each part goes round once to be summed, once to be shared."""
        parts = [own[n :: self.size] for n in range(self.size)]
        for turn in range(2 * (self.size - 1)):
            outgoing = (self.rank - turn) % self.size
            incoming = (outgoing - 1) % self.size
            received = self.shift(parts[outgoing])
            is_summed = turn >= self.size - 1
            parts[incoming] = received if is_summed else _add(parts[incoming], received)
        total = list(own)
        for n, part in enumerate(parts):
            total[n :: self.size] = part
        return total

    def newest(self, state: State) -> State:
        """The newest of the states that the ranks have."""
        for _ in range(1, self.size):
            state = max(state, State(*self.shift(state)))
        return state


def _add(one: Vector, other: Vector) -> Vector:
    return [a + b for a, b in zip(one, other, strict=True)]


def _connect(address: Address) -> socket.socket:
    """A connection to a peer that may not listen yet."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(address, timeout=TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _reader(connection: socket.socket) -> BinaryIO:
    connection.settimeout(TIMEOUT_S)
    return connection.makefile("rb")


def _send(connection: socket.socket, value: object) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _receive(reader: BinaryIO) -> Any:
    line = reader.readline()
    if not line:
        raise ConnectionError("a peer closed the connection")
    return json.loads(line)


def contribution(rank: int, step: int, size: int) -> Vector:
    return [(rank + 1) * step + n for n in range(2 * size)]


def expected(size: int) -> Vector:
    """The final sum, computed without communication."""
    total = [0] * (2 * size)
    for step in range(1, STEPS + 1):
        for rank in range(size):
            total = _add(total, contribution(rank, step, size))
    return total


def work(ring: Ring, state: State) -> State:
    """Run until the end, until a rank is asked to stop, or until a peer is lost."""
    try:
        while state.step < STEPS:
            time.sleep(STEP_S)
            step = state.step + 1
            # The request to stop is part of the sum, so all ranks stop after the same step.
            own = [*contribution(ring.rank, step, ring.size), int(task.should_stop())]
            *summed, stop_requests = ring.all_reduce(own)
            state = State(step, _add(state.total, summed))
            task.progress(step)
            if ring.rank == 0 and step % 10 == 0:
                say(f"step {step} of {STEPS}, sum {sum(state.total)}")
            if stop_requests:
                break
    except OSError:
        say(f"rank {ring.rank}: lost a peer after step {state.step}")
    return state


def save_and_stop(state: State) -> int:
    """Save, then wait for SIGTERM: a checkpoint counts only if the task was asked to stop."""
    task.checkpoint.save(json.dumps(state).encode())
    deadline = time.monotonic() + TIMEOUT_S
    while not task.should_stop() and time.monotonic() < deadline:
        time.sleep(0.02)
    return 1


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    task.should_stop()  # from here on SIGTERM does not interrupt a step
    saved = task.checkpoint.load()
    size = task.world_size()
    state = State(*json.loads(saved)) if saved else State(0, [0] * (2 * size))
    say(f"rank {task.rank()}: process {os.getpid()}, attempt {task.attempt()}")
    ring = Ring()
    state = ring.newest(state)
    if ring.rank == 0 and state.step:
        say(f"resuming after step {state.step}, sum {sum(state.total)}")
    state = work(ring, state)
    if state.step < STEPS:
        return save_and_stop(state)
    is_correct = state.total == expected(size)
    if ring.rank == 0:
        verdict = "correct" if is_correct else f"expected {sum(expected(size))}"
        say(f"finished {STEPS} steps, sum {sum(state.total)} ({verdict})")
    return 0 if is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
