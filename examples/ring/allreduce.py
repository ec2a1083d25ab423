"""A gang that really talks: a ring all-reduce over sockets, with nothing but Python and Phalanx.

In every step each rank adds a vector of its own to one that all of them hold. A step that was left
out, done twice or done without a rank would show in the sum at the end. A rank that loses its peers
keeps its last whole step; the next attempt goes on from the newest step that anybody kept.
"""

import json
import os
import socket
import sys
import time
from typing import Any, BinaryIO, NamedTuple

from phalanx import task

STEPS = int(os.environ.get("STEPS", "60"))
STEP_S = 0.05  #: as if there were something to compute
WAIT_S = 20.0  #: for a peer that neither speaks nor hangs up

Vector = list[int]
Place = tuple[str, int]


class State(NamedTuple):
    """What all ranks have after a step."""

    step: int
    total: Vector


class Ring:
    """A way to the next rank, and one from the rank before."""

    def __init__(self) -> None:
        self.rank, self.size = task.rank(), task.world_size()
        with socket.create_server((task.peers()[self.rank], 0)) as door:
            places = self._meet(door.getsockname())
            self._next = _call(places[(self.rank + 1) % self.size])
            self._before = _lines(door.accept()[0])

    def _meet(self, mine: Place) -> list[Place]:
        """Rank 0 hears where each of the others listens, and tells all of them."""
        at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank:
            with _call(at) as call:
                _send(call, [self.rank, mine])
                return [(host, port) for host, port in _receive(_lines(call))]
        places = {0: mine}
        with socket.create_server(at, backlog=self.size) as door:
            calls = [door.accept()[0] for _ in range(1, self.size)]
        for call in calls:
            rank, place = _receive(_lines(call))
            places[rank] = place
        told = [places[rank] for rank in range(self.size)]
        for call in calls:
            _send(call, told)
            call.close()
        return told

    def turn(self, mine: object) -> Any:
        """Give this to the next rank, and take what the rank before gives."""
        _send(self._next, mine)
        return _receive(self._before)

    def all_reduce(self, mine: Vector) -> Vector:
        """The sum over all ranks. Each part goes round once to be summed, and once to be told."""
        parts = [mine[n :: self.size] for n in range(self.size)]
        for turn in range(2 * (self.size - 1)):
            going = (self.rank - turn) % self.size
            coming = (going - 1) % self.size
            heard = self.turn(parts[going])
            is_sum = turn >= self.size - 1
            parts[coming] = heard if is_sum else _plus(parts[coming], heard)
        summed = list(mine)
        for n, part in enumerate(parts):
            summed[n :: self.size] = part
        return summed

    def newest(self, state: State) -> State:
        """The furthest of the states that the ranks have kept."""
        for _ in range(1, self.size):
            state = max(state, State(*self.turn(state)))
        return state


def _plus(one: Vector, other: Vector) -> Vector:
    return [a + b for a, b in zip(one, other, strict=True)]


def _call(place: Place) -> socket.socket:
    """Whoever is called may not listen yet."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection(place, timeout=WAIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _lines(call: socket.socket) -> BinaryIO:
    call.settimeout(WAIT_S)
    return call.makefile("rb")


def _send(call: socket.socket, what: object) -> None:
    call.sendall(json.dumps(what).encode() + b"\n")


def _receive(lines: BinaryIO) -> Any:
    line = lines.readline()
    if not line:
        raise ConnectionError("a peer has hung up")
    return json.loads(line)


def contribution(rank: int, step: int, size: int) -> Vector:
    return [(rank + 1) * step + n for n in range(2 * size)]


def expected(size: int) -> Vector:
    """What the sum must be in the end, without having talked to anybody."""
    total = [0] * (2 * size)
    for step in range(1, STEPS + 1):
        for rank in range(size):
            total = _plus(total, contribution(rank, step, size))
    return total


def work(ring: Ring, state: State) -> State:
    """Up to the end, to a stop that all heard of, or to the last whole step with all peers."""
    try:
        while state.step < STEPS:
            time.sleep(STEP_S)
            step = state.step + 1
            # All of them leave after the same step, although they are told at different times.
            mine = [*contribution(ring.rank, step, ring.size), int(task.should_stop())]
            *summed, stopping = ring.all_reduce(mine)
            state = State(step, _plus(state.total, summed))
            task.progress(step)
            if ring.rank == 0 and step % 10 == 0:
                say(f"step {step} of {STEPS}, the sum is {sum(state.total)}")
            if stopping:
                break
    except OSError:
        say(f"rank {ring.rank} has lost a peer after step {state.step}")
    return state


def leave(state: State) -> int:
    """Keep what there is. Who lost a peer is told to stop in a moment, and what is saved counts."""
    task.checkpoint.save(json.dumps(state).encode())
    until = time.monotonic() + WAIT_S
    while not task.should_stop() and time.monotonic() < until:
        time.sleep(0.02)
    return 1


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    task.should_stop()  # from here on SIGTERM waits for the end of a step
    saved = task.checkpoint.load()
    size = task.world_size()
    state = State(*json.loads(saved)) if saved else State(0, [0] * (2 * size))
    say(f"rank {task.rank()} is process {os.getpid()}, attempt {task.attempt()}")
    ring = Ring()
    state = ring.newest(state)
    if ring.rank == 0 and state.step:
        say(f"all go on after step {state.step}, the sum is {sum(state.total)}")
    state = work(ring, state)
    if state.step < STEPS:
        return leave(state)
    is_right = state.total == expected(size)
    if ring.rank == 0:
        verdict = "as it must be" if is_right else f"and must be {sum(expected(size))}"
        say(f"after {STEPS} steps the sum is {sum(state.total)}, {verdict}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
