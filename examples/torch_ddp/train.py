"""Data-parallel training with PyTorch that survives the loss of a rank and ends with the same loss.

All ranks have the same model, so the newest checkpoint of any rank is enough to resume from. The
data of a step depends only on its number and the rank: a run that was interrupted ends with exactly
the loss of one that was not. Uses a GPU if the task has one.
"""

import io
import os
import sys
import time
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # reproducible results

try:
    import torch
    import torch.distributed as dist
    from torch import nn
except ModuleNotFoundError:
    sys.exit(f"{sys.executable} has no PyTorch; see docs/how-to/examples.md#pytorch")

from phalanx import task

STEPS = int(os.environ.get("STEPS", "300"))
WIDTH = int(os.environ.get("WIDTH", "128"))
STEP_S = float(os.environ.get("STEP_S", "0"))  #: a pause after each step, so that it can be watched
PRINT_EVERY = int(os.environ.get("PRINT_EVERY", "50"))
TIMEOUT_S = 20.0  #: for SIGTERM after a peer was lost


class Training:
    """A linear model on random features."""

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

    def device_name(self) -> str:
        if self.device.type == "cpu":
            return "on the CPU"
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"on {torch.cuda.get_device_name()}, CUDA_VISIBLE_DEVICES={devices}"

    def resume(self, saved: bytes | None) -> None:
        """Load the newest checkpoint of any rank."""
        state = torch.load(io.BytesIO(saved), map_location="cpu") if saved else {"step": 0}
        steps: list[int | None] = [None] * dist.get_world_size()
        dist.all_gather_object(steps, state["step"])
        newest = max(range(len(steps)), key=lambda rank: steps[rank] or 0)
        shared = [state]
        dist.broadcast_object_list(shared, src=newest)
        [state] = shared
        if state["step"]:
            self.step = state["step"]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    def checkpoint(self) -> bytes:
        state: dict[str, Any] = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def do_step(self) -> None:
        """Train one step. Raises RuntimeError, and changes nothing, if a peer was lost."""
        generator = torch.Generator(self.device)
        generator.manual_seed(self.step * dist.get_world_size() + dist.get_rank())
        batch = torch.randn(WIDTH, WIDTH, generator=generator, device=self.device)
        features = torch.relu(batch @ self.frozen)
        target = features.mean(dim=1, keepdim=True) + batch[:, :1]
        loss = nn.functional.mse_loss(self.model(features), target)
        self.optimizer.zero_grad()
        loss.backward()  # the ranks average their gradients here
        self.optimizer.step()
        self.step += 1
        self.loss = loss.item()

    def is_stopping(self) -> bool:
        """Whether any rank was asked to stop, so that all stop after the same step."""
        requests = torch.tensor([int(task.should_stop())])
        dist.all_reduce(requests)
        return bool(requests.item())


def train(training: Training) -> None:
    """Train until the end, until a rank is asked to stop, or until a peer is lost."""
    try:
        while training.step < STEPS and not training.is_stopping():
            training.do_step()
            task.progress(training.step)
            if training.step % PRINT_EVERY == 0:
                say(f"step {training.step} of {STEPS}, loss {training.loss:.6f}")
            time.sleep(STEP_S)
    except RuntimeError:
        print(f"rank {dist.get_rank()}: lost a peer after step {training.step}", flush=True)


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def save_and_stop(training: Training) -> None:
    """Save, then wait for SIGTERM: a checkpoint counts only if the task was asked to stop."""
    task.checkpoint.save(training.checkpoint())
    deadline = time.monotonic() + TIMEOUT_S
    while not task.should_stop() and time.monotonic() < deadline:
        time.sleep(0.02)
    os._exit(1)  # an orderly shutdown would wait for lost peers


def main() -> int:
    task.should_stop()  # from here on SIGTERM does not interrupt a step
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    print(
        f"rank {dist.get_rank()}: process {os.getpid()}, attempt {task.attempt()},"
        f" {training.device_name()}",
        flush=True,
    )
    training.resume(task.checkpoint.load())
    if training.step:
        say(f"resuming after step {training.step}")
    train(training)
    if training.step < STEPS:
        save_and_stop(training)
    weights = sum(float(p.detach().double().sum()) for p in training.model.parameters())
    say(f"trained: loss {training.loss!r}, sum of weights {weights!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
