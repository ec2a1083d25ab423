"""Training in which one rank computes wrong results, as a faulty GPU would, without any error.

The ranks average their gradients in every step, so one wrong gradient spoils the weights of all of
them one step later. Each rank reports its own loss, and rank 0 saves the weights every 50 steps. In
the first attempt rank 2 is wrong from step 120 on. The job watches the loss and restarts the gang;
the next attempt resumes from the last step that was saved before.
"""

import json
import os
import random
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

from phalanx import task

STEPS = 300
SAVE_EVERY = 50
WRONG_RANK, WRONG_FROM = 2, 120
STEP_S = 0.02  #: stands for the computation of a step
RATE = 0.02
TRUTH = [2.0, -3.0]  #: the weights to learn
BATCH = 32
#: Stands for a shared file system.
SAVED = Path(tempfile.gettempdir()) / f"ghost-loss-{task.job()}"

Weights = list[float]


class Gang:
    """Rank 0 receives a list of numbers of every rank, and sends all of them the average."""

    def __init__(self) -> None:
        master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if task.rank():
            self._connections = [_connect(master)]
        else:
            with socket.create_server(master, backlog=task.world_size()) as listener:
                self._connections = [listener.accept()[0] for _ in range(1, task.world_size())]
        self._readers = [connection.makefile("rb") for connection in self._connections]

    def from_rank_0(self, value: object) -> Any:
        """The value of rank 0."""
        if task.rank():
            return _receive(self._readers[0])
        for connection in self._connections:
            _send(connection, value)
        return value

    def average(self, own: Weights) -> Weights:
        if task.rank():
            _send(self._connections[0], own)
            return [float(number) for number in self.from_rank_0(None)]
        lists = [own, *map(_receive, self._readers)]
        means = [sum(numbers) / len(lists) for numbers in zip(*lists, strict=True)]
        return [float(number) for number in self.from_rank_0(means)]


def _connect(address: tuple[str, int]) -> socket.socket:
    for _ in range(200):
        try:
            return socket.create_connection(address, timeout=20)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit(f"rank 0 does not listen at {address}")


def _send(connection: socket.socket, value: object) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _receive(reader: BinaryIO) -> Any:
    try:
        line = reader.readline()
    except OSError:
        line = b""
    if not line:
        raise SystemExit(f"rank {task.rank()}: a peer has ended")
    return json.loads(line)


def saved_state() -> tuple[int, Weights]:
    """The step to resume after, and its weights. What was saved after a wrong loss is not used."""
    newest = task.resume_step()
    steps = [int(path.name) for path in SAVED.glob("*") if path.name.isdecimal()]
    usable = [step for step in steps if newest is None or step <= newest]
    if not usable:
        return 0, [0.0, 0.0]
    return max(usable), json.loads((SAVED / str(max(usable))).read_text("utf-8"))


def save(step: int, weights: Weights) -> None:
    SAVED.mkdir(exist_ok=True)
    (SAVED / "new").write_text(json.dumps(weights), "utf-8")
    (SAVED / "new").replace(SAVED / str(step))


def loss_and_gradient(weights: Weights, step: int) -> tuple[float, Weights]:
    """The mean squared error of this rank's batch, and its gradient."""
    data = random.Random(1000 * step + task.rank())  # noqa: S311
    loss, gradient = 0.0, [0.0, 0.0]
    for _ in range(BATCH):
        x = [data.gauss(0, 1), data.gauss(0, 1)]
        y = sum(t * each for t, each in zip(TRUTH, x, strict=True)) + data.gauss(0, 1)
        if task.attempt() == 1 and task.rank() == WRONG_RANK and step >= WRONG_FROM:
            y *= 10  # a wrong result
        error = sum(w * each for w, each in zip(weights, x, strict=True)) - y
        loss += error * error / BATCH
        gradient = [g + 2 * error * each / BATCH for g, each in zip(gradient, x, strict=True)]
    return loss, gradient


def main() -> None:
    gang = Gang()
    done, weights = gang.from_rank_0(saved_state() if task.rank() == 0 else None)
    print(f"rank {task.rank()} begins after step {done}, attempt {task.attempt()}", flush=True)
    for step in range(done + 1, STEPS + 1):
        loss, gradient = loss_and_gradient(weights, step)
        gradient = gang.average(gradient)
        weights = [w - RATE * g for w, g in zip(weights, gradient, strict=True)]
        saves = task.rank() == 0 and step % SAVE_EVERY == 0
        if saves:
            save(step, weights)
        task.progress(step, STEPS, loss=loss, checkpoint=saves)
        time.sleep(STEP_S)
    if task.rank() == 0:
        print(f"trained: weights {weights[0]:.2f} and {weights[1]:.2f}", flush=True)
        shutil.rmtree(SAVED, ignore_errors=True)


if __name__ == "__main__":
    main()
