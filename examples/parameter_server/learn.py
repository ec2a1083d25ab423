"""Workers that learn together through a parameter server, which never ends by itself.

The roles come in the order of the job file, so rank 0 is the server, and every worker finds it at
the meeting point of the gang. When the last worker is done the job is, and the server is stopped.
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
TRUTH = [2.0, -3.0, 0.5]  #: what there is to learn: two weights and a bias
RATE = 0.05
WAIT_S = 20.0

Weights = list[float]


class Server(socketserver.ThreadingTCPServer):
    """Takes gradients, and gives the weights that follow from all of them."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, place: tuple[str, int], weights: Weights) -> None:
        super().__init__(place, Exchange)
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


def place() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def serve() -> int:
    saved = task.checkpoint.load()
    weights = json.loads(saved) if saved else [0.0] * len(TRUTH)
    with Server(place(), weights) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while not task.should_stop():
            signal.sigtimedwait([], 0.1)
        task.checkpoint.save(json.dumps(server.weights).encode())
        shown = ", ".join(f"{weight:.3f}" for weight in server.weights)
        print(f"stopped after {server.updates} updates with {shown}", flush=True)
    return 0


def work() -> int:
    chance = random.Random(task.rank())  # noqa: S311
    weights = [0.0] * len(TRUTH)
    gradient = list(weights)
    with connection() as call, call.makefile("rb") as answers:
        for step in range(STEPS):
            call.sendall(json.dumps(gradient).encode() + b"\n")
            weights = json.loads(answers.readline())
            example = [chance.uniform(-1, 1), chance.uniform(-1, 1), 1.0]
            error = sum((w - t) * x for w, t, x in zip(weights, TRUTH, example, strict=True))
            gradient = [error * x for x in example]
            task.progress(step + 1)
    off = max(abs(w - t) for w, t in zip(weights, TRUTH, strict=True))
    print(f"rank {task.rank()} is done, {off:.3f} off the truth", flush=True)
    return 0


def connection() -> socket.socket:
    """To the server, which may not listen yet."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection(place(), timeout=WAIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(serve() if task.role() == "ps" else work())
