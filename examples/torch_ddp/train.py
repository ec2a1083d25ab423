"""Data-parallel training with PyTorch that survives the loss of a rank and ends with the same loss.

All ranks hold the same model, so the newest state that any of them saved is enough to go on from.
What a step computes depends on nothing but its number: with two ranks, a run that was killed in the
middle ends with the very loss of one that was not. It uses a GPU if the task was given one.
"""

import io
import os
import sys
import time
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # results that can be repeated

import torch
import torch.distributed as dist
from torch import nn

from phalanx import task

STEPS = int(os.environ.get("STEPS", "300"))
WIDTH = int(os.environ.get("WIDTH", "128"))
STEP_S = float(os.environ.get("STEP_S", "0"))  #: what a step takes at least, to watch it
SAY_EVERY = int(os.environ.get("SAY_EVERY", "50"))
WAIT_S = 20.0  #: for being told to stop, once a peer is gone

Bytes = bytes | None


class Training:
    """A model that is trained on features of its own making."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.frozen = torch.randn(WIDTH, WIDTH).to(self.device) / WIDTH**0.5
        model = nn.Linear(WIDTH, 1).to(self.device)
        self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.step = 0
        self.loss = float("nan")

    def where(self) -> str:
        if self.device.type == "cpu":
            return "on the CPU"
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"on {torch.cuda.get_device_name()}, CUDA_VISIBLE_DEVICES={devices}"

    def go_on(self, saved: Bytes) -> None:
        """From the newest state that any rank has."""
        kept = torch.load(io.BytesIO(saved), map_location="cpu") if saved else {"step": 0}
        steps: list[int | None] = [None] * dist.get_world_size()
        dist.all_gather_object(steps, kept["step"])
        newest = max(range(len(steps)), key=lambda rank: steps[rank] or 0)
        found = [kept]
        dist.broadcast_object_list(found, src=newest)
        [kept] = found
        if kept["step"]:
            self.step = kept["step"]
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])

    def saved(self) -> bytes:
        kept: dict[str, Any] = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        file = io.BytesIO()
        torch.save(kept, file)
        return file.getvalue()

    def do_step(self) -> None:
        """Raises RuntimeError if a peer is gone, and then nothing has changed."""
        chance = torch.Generator(self.device)
        chance.manual_seed(self.step * dist.get_world_size() + dist.get_rank())
        batch = torch.randn(WIDTH, WIDTH, generator=chance, device=self.device)
        features = torch.relu(batch @ self.frozen)
        target = features.mean(dim=1, keepdim=True) + batch[:, :1]
        loss = nn.functional.mse_loss(self.model(features), target)
        self.optimizer.zero_grad()
        loss.backward()  # the ranks average their gradients here
        self.optimizer.step()
        self.step += 1
        self.loss = loss.item()

    def is_stopping(self) -> bool:
        """Whether any rank was told to: so all leave after the same step."""
        told = torch.tensor([int(task.should_stop())])
        dist.all_reduce(told)
        return bool(told.item())


def train(training: Training) -> None:
    """To the end, or to the last step that was whole when it has to stop."""
    try:
        while training.step < STEPS and not training.is_stopping():
            training.do_step()
            task.progress(training.step)
            if training.step % SAY_EVERY == 0:
                say(f"step {training.step} of {STEPS}, loss {training.loss:.6f}")
            time.sleep(STEP_S)
    except RuntimeError:
        print(f"rank {dist.get_rank()} lost a peer after step {training.step}", flush=True)


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def leave(training: Training) -> None:
    """Save and stop. Who lost a peer is told to stop in a moment; only then does it count."""
    task.checkpoint.save(training.saved())
    until = time.monotonic() + WAIT_S
    while not task.should_stop() and time.monotonic() < until:
        time.sleep(0.02)
    os._exit(1)  # there may be no peers left to say goodbye to


def main() -> int:
    task.should_stop()  # from here on SIGTERM waits for the end of a step
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    print(
        f"rank {dist.get_rank()} is process {os.getpid()}, attempt {task.attempt()},"
        f" {training.where()}",
        flush=True,
    )
    training.go_on(task.checkpoint.load())
    if training.step:
        say(f"all go on after step {training.step}")
    train(training)
    if training.step < STEPS:
        leave(training)
    weights = sum(float(p.detach().double().sum()) for p in training.model.parameters())
    say(f"trained: the loss is {training.loss!r}, the weights add up to {weights!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
