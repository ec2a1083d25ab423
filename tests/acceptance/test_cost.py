"""`phalanx cost`, with the commands of docs/how-to/cost.md."""

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from phalanx.api.services import Info
from phalanx.client import Client
from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import HOUR, MINUTE, SECOND
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from tests.acceptance.pages import commands
from tests.acceptance.terminal import PATIENCE_S, Server, Terminal, Worker
from tests.integration.api.serving import quick, serving

PRICED = quick(core=replace(CoreSettings(), price={"gpu": 3_500_000}))
#: Five hours on four GPUs, of which the class `high` may take them.
LONG = """
name: team-a
namespace: ml
time_limit: 5h
roles: {workers: {replicas: 4, command: [train], resources: {gpu: 1}}}
"""
PREEMPTED = "task workers preempted by higher-priority job ml/team-b-urgent"
URGENT = LONG.replace("team-a", "team-b-urgent") + "priority_class: high\n"


def test_an_eviction_appears_in_every_table_of_the_page(tmp_path: Path) -> None:
    with Server(tmp_path, "--price=gpu=1000000000") as server:
        terminal = Terminal(server.url)
        with Worker(server.url, "w-1", gpu=1) as worker:
            said = terminal.type("submit", "--name", "train", "--gpu", "1", "--", "x")
            claim = worker.claim()
            with Client(server.url) as client:
                client.requeue(said.out.strip())
            worker.preempted(claim)
        shown = terminal.type("job", "train")
        assert re.search(
            r"evicted +\d+s ago: requeued by local\nlost work +[\d,.]+ GPU-hours \(\$.* in 1 evic",
            shown.out,
        )
        by_queue, by_job, by_evictor, as_json = [terminal.type(*each) for each in commands("cost")]
    found = as_json.json
    money = f"${found['to_eviction']['cost']:,.2f}"
    assert re.search(rf"default +1 +[\d.]+ +{re.escape(money)} +0 ", by_queue.out)
    assert f"GPU-hours ({money}) in 1 eviction" in by_queue.out
    assert "default/train" in by_job.out
    assert re.search(r"local +default +1 ", by_evictor.out)


def test_without_lost_work_nothing_is_printed(terminal: Terminal) -> None:
    said = terminal.type("cost")
    assert (said.status, said.out) == (0, "")


class _Watch:
    """A clock that only we move."""

    def __init__(self) -> None:
        self.now = wall_clock()

    def __call__(self) -> int:
        return self.now


@pytest.mark.parametrize(("saved", "price"), [(False, "$70.00"), (True, "$0.47")])
async def test_five_hours_on_four_gpus_cost_seventy_dollars_unless_they_were_saved(
    saved: bool, price: str
) -> None:
    clock, info = _Watch(), Info(priority_classes={"high": 10})
    store = MemoryStore(clock=wall_clock)
    async with serving(store, settings=PRICED, info=info, clock=clock) as server:
        await asyncio.to_thread(_evict, server.url, clock, saved=saved, price=price)


def _evict(url: str, clock: _Watch, *, saved: bool, price: str) -> None:
    terminal = Terminal(url)
    with Worker(url, "w-1", gpu=4) as worker:
        said = terminal.type("submit", "-f", "-", stdin=LONG)
        assert "this job is low-priority; higher-priority jobs may preempt it" in said.err
        assert re.search(r"checkpoint.*\$70\.00", said.err), said.err
        job = said.out.strip()
        claims = [worker.claim() for _ in range(4)]
        clock.now += 5 * HOUR - 2 * MINUTE
        if saved:
            for claim in claims:
                worker.checkpointed(claim)
        clock.now += 2 * MINUTE - SECOND // 100
        urgent = terminal.type("submit", "-f", "-", stdin=URGENT).out.strip()
        with Client(url) as client:
            watched = client.watch(job, timeout_s=PATIENCE_S)
            next(seen for seen in watched if seen.phase == "stopping")
            assert f"stopping: {PREEMPTED}" in terminal.type("job", job).out
            for claim in claims:
                worker.preempted(claim)
            shown = terminal.type("job", job).out
            assert re.search(rf"evicted +\d+s ago: {PREEMPTED}", shown), shown
            assert re.search(rf"lost work .*\({re.escape(price)}\) in 1 eviction", shown), shown
            assert f"evicted: {PREEMPTED}" in terminal.type("events", job).out
            for _ in claims:
                worker.end(worker.claim())
            assert client.wait(urgent, timeout_s=PATIENCE_S).phase == "done"
