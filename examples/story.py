"""A gang starts, fails, stops, survives the death of its leader, starts again and finishes.

The smallest example of how the parts fit: an event is applied to the cluster, its changes become a
batch, the batch is committed, and only then is it acted upon. The core, the planner, the SQLite
file and the death of the first leader are real; workers are simulated, and time is virtual.
"""

import asyncio
import multiprocessing
import os
import signal
import tempfile
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from phalanx.core import events
from phalanx.core.cluster import Cluster
from phalanx.core.ids import job_id
from phalanx.core.model import Blob, Protocol, Task
from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec.validation import job_spec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.cycle import plan
from phalanx.plan.state.planner_state import PlannerState
from phalanx.store.batches import batch_of
from phalanx.store.sqlite import SQLiteStore
from phalanx.wire.event_text import sentence

NINE: Micros = int(datetime(2026, 1, 5, 9, tzinfo=UTC).timestamp()) * SECOND
LEASE = 10 * SECOND
JOB = job_id(0x1D5D0A13A7)
ROLES = {"worker": {"replicas": 4, "command": "python train.py", "resources": {"gpu": 1}}}
TRAIN = job_spec({"name": "pretrain-7b", "roles": ROLES, "spread": True, "checkpoint": "each"})


class Leader:
    """The only writer. The engine adds a queue, group commit and recovery from failed commits."""

    def __init__(self, path: Path) -> None:
        self.now = NINE
        self.store = SQLiteStore(path, clock=lambda: self.now)
        self.batches = count(1)

    async def take_over(self, name: str) -> None:
        """Take the lease as soon as it is free, and load the live rows."""
        while (term := await self.store.lead(name, f"http://{name}", LEASE)) is None:
            self.now += SECOND
        self.term = term
        self.cluster = Cluster.load(await self.store.load(term), self.now)
        self.timers = list(self.cluster.timers())

    async def apply(self, *applied: events.Event) -> None:
        """Apply events and commit their changes."""
        changes = [self.cluster.apply(event, self.now) for event in applied]
        batch = batch_of(f"term-{self.term}-{next(self.batches)}", changes)
        await self.store.commit(self.term, batch)
        self.timers += [timer for change in changes for timer in change.timers]

    async def wait(self, seconds: int) -> None:
        """Let time pass. Timers are never cancelled: one that has become void changes nothing."""
        self.now += seconds * SECOND
        due = sorted((t for t in self.timers if t.at <= self.now), key=lambda timer: timer.at)
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        await self.apply(*(timer.event for timer in due))
        await self.store.renew(self.term, LEASE)

    def tasks(self, state: State) -> list[Task]:
        return [task for task in self.cluster.gangs[JOB].tasks if task.state is state]


async def start(leader: Leader) -> None:
    """What the planner decides is an event like any other; then all accept, and all start."""
    planned = plan(PlannerState.of(leader.cluster), leader.now)
    await leader.apply(events.Placed(tuple(planned.reserved())))
    await leader.wait(1)
    reserved = leader.tasks(State.RESERVED)
    await leader.apply(*(events.Accepted(task.id, task.epoch) for task in reserved))
    await leader.wait(1)
    await leader.apply(*(events.Started(task.id, task.epoch) for task in reserved))


async def save_and_stop(leader: Leader, task: Task) -> None:
    """Do what an agent does to stop a task: keep its checkpoint, report it, report the exit."""
    await leader.wait(2)
    state = f"rank {task.index} at step 1200".encode()
    blob = Blob(f"{task.id}-{task.epoch}", len(state))
    await leader.store.put_blob(blob.id, task.job, state)
    await leader.apply(events.CheckpointSaved(task.id, task.epoch, blob))
    await leader.apply(events.Exited(task.id, task.epoch, code=0, signalled=True))


async def until_the_crash(leader: Leader) -> None:
    await leader.store.open()
    await leader.take_over("first")
    for name in ("ares", "boreas", "castor", "doris"):
        gpus = {GPU: 2 * DEVICE}
        agent = events.WorkerRegistered(name, "1", Protocol.SYNC, f"{name}:7000", gpus)
        await leader.apply(agent, events.Inventoried(name, "1", ()))
    await leader.apply(events.Submitted(JOB, TRAIN, owner="ada"))
    await start(leader)
    await leader.wait(20 * 60)
    victim = leader.tasks(State.RUNNING)[2]
    await leader.apply(events.Exited(victim.id, victim.epoch, signal=signal.SIGKILL))
    for task in leader.tasks(State.PREEMPTING)[:2]:
        await save_and_stop(leader, task)
    os.kill(os.getpid(), signal.SIGKILL)  # while the gang is stopping


async def after_the_crash(leader: Leader, killer: signal.Signals) -> None:
    await leader.store.open()
    leader.now = (await leader.store.records(job=JOB, limit=1000))[-1].at
    notes = [(leader.now, f"*** the leader was killed by {killer.name} ***")]
    await leader.take_over("second")
    job, stopping = leader.cluster.gangs[JOB].job, leader.tasks(State.PREEMPTING)
    notes += [
        (leader.now, f"*** another server leads, in term {leader.term}: the job is {job.phase} ***")
    ]
    for name in leader.cluster.nodes:
        has = tuple((task.id, task.epoch) for task in stopping if task.worker == name)
        await leader.apply(events.Inventoried(name, "1", has))
    for task in stopping:
        await save_and_stop(leader, task)
    await start(leader)
    await leader.wait(40 * 60)
    for task in leader.tasks(State.RUNNING):
        await leader.apply(events.Exited(task.id, task.epoch, code=0))
    await leader.store.resign(leader.term)
    lines = [(r.at, sentence(r)) for r in await leader.store.records(job=JOB, limit=1000)]
    for at, what in sorted(lines + notes, key=lambda line: line[0]):
        print(f"{datetime.fromtimestamp(at / SECOND, UTC):%H:%M:%S}  {what}")
    await show_tasks(leader.store)
    await leader.store.close()


async def show_tasks(store: SQLiteStore) -> None:
    job, tasks = await store.job(JOB) or (None, ())
    print(f"\nTasks of {job and job.name}, and the checkpoint that each last attempt was given:")
    for task in tasks:
        saved = task.checkpoint and await store.get_blob(task.checkpoint.id)
        given = f'"{saved.decode()}"' if saved else "none"
        print(f"  task {task.index}  {task.state}  attempt {task.epoch}  {task.worker:8}{given}")
    print("\nNow type: make test, or make bench. How it works: docs/architecture.md")


def first_leader(path: Path) -> None:
    asyncio.run(until_the_crash(Leader(path)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "phalanx.db"
        first = multiprocessing.get_context("spawn").Process(target=first_leader, args=(file,))
        first.start()
        first.join()
        asyncio.run(after_the_crash(Leader(file), signal.Signals(-(first.exitcode or 0))))
