"""Workers that train with a parameter server, which does not end by itself.

Roles have the order of the job file, so rank 0 is the server, and every worker finds it at
MASTER_ADDR and MASTER_PORT. The job is done when the last worker is done; then the server is
stopped.
"""

import json
import os
import random
import signal
import socket
import socketserver
import sys
import threading
import time

from phalanx import task

STEPS = int(os.environ.get("STEPS", "200"))
TRUTH = [2.0, -3.0, 0.5]  #: the weights to learn, and a bias
RATE = 0.05
TIMEOUT_S = 20.0

Weights = list[float]


class Server(socketserver.ThreadingTCPServer):
    """Applies gradients, and returns the new weights."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], weights: Weights) -> None:
        super().__init__(address, Exchange)
        self.weights = weights
        self.updates = 0
        self._lock = threading.Lock()

    def learn(self, gradient: Weights) -> Weights:
        with self._lock:
            self.updates += any(gradient)
            self.weights = [w - RATE * g for w, g in zip(self.weights, gradient, strict=True)]
            return self.weights


class Exchange(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        for line in self.rfile:
            weights = self.server.learn(json.loads(line))
            self.wfile.write(json.dumps(weights).encode() + b"\n")


def address() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def serve() -> int:
    saved = task.checkpoint.load()
    weights = json.loads(saved) if saved else [0.0] * len(TRUTH)
    with Server(address(), weights) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while not task.should_stop():
            signal.sigtimedwait([], 0.1)
        task.checkpoint.save(json.dumps(server.weights).encode())
        learned = ", ".join(f"{weight:.3f}" for weight in server.weights)
        print(f"stopped after {server.updates} updates, weights {learned}", flush=True)
    return 0


def work() -> int:
    generator = random.Random(task.rank())  # noqa: S311
    weights = [0.0] * len(TRUTH)
    gradient = list(weights)
    with connect() as connection, connection.makefile("rb") as replies:
        for step in range(STEPS):
            connection.sendall(json.dumps(gradient).encode() + b"\n")
            weights = json.loads(replies.readline())
            example = [generator.uniform(-1, 1), generator.uniform(-1, 1), 1.0]
            error = sum((w - t) * x for w, t, x in zip(weights, TRUTH, example, strict=True))
            gradient = [error * x for x in example]
            task.progress(step + 1)
    largest_error = max(abs(w - t) for w, t in zip(weights, TRUTH, strict=True))
    print(f"rank {task.rank()} done, largest error {largest_error:.3f}", flush=True)
    return 0


def connect() -> socket.socket:
    """A connection to the server, which may not listen yet."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(address(), timeout=TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(serve() if task.role() == "ps" else work())
