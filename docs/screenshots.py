"""Pictures of every page of the dashboard in both themes, from a server with a made-up cluster.

`make screenshots` writes them to docs/images/dashboard; look at them after a change of the page.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from playwright.async_api import Page, async_playwright
from tests.acceptance.fleet import Fleet
from tests.integration.api.serving import Running, serving

from phalanx.core.time_units import MINUTE
from phalanx.engine.usage_history import UsageSample
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import Note

FOLDER = Path(__file__).parent / "images" / "dashboard"
THEMES = ("light", "dark")
WORKERS, GPUS = 32, 8
QUEUES: dict[str, dict[str, Any]] = {
    "ml": {"quota": {"gpu": 64}, "limit": {"gpu": 160}},
    "ml-pretrain": {"parent": "ml", "weight": 3},
    "ml-eval": {"parent": "ml"},
    "vision": {"quota": {"gpu": 48}},
    "speech": {"quota": {"gpu": 32}},
    "search": {"weight": 1},
}
#: Queue, name, tasks, GPUs of each, priority.
JOBS = (
    *[("ml-pretrain", "pretrain-7b", 64, 1, 100), ("ml-pretrain", "rlhf-13", 24, 1, 50)],
    *[("vision", "vit-l", 4, 8, 50), ("speech", "asr", 11, 1, 0), ("ml-eval", "sweep-lr", 5, 2, 0)],
    *[("search", "rank", 6, 4, 0), ("search", "embed", 3, 7, 0), ("vision", "detect", 2, 3, 0)],
    *[("vision", "vit-h", 6, 8, 80), ("ml-pretrain", "moe-64", 16, 4, 60)],
    *[("speech", "tts", 24, 2, 10), ("ml-eval", "eval-3", 1, 8, 0), ("search", "rank-2", 4, 8, 0)],
)

PAGES = ("overview", "jobs", "cluster", "queues")

#: Trains, and loses rank 2 once.
TRAIN = """
import math, os, time
from phalanx import task
step = int(task.checkpoint.load() or 0)
task.on_stop(lambda: task.checkpoint.save(str(step).encode()))
while step < 900:
    step += 1
    time.sleep(0.022 if task.rank() == 5 else 0.02)
    loss = 0.4 + 2.2 * math.exp(-step / 120) + 0.03 * math.sin(step * 1.7)
    task.progress(step, total=900, loss=loss, checkpoint=step % 40 == 0)
    if step % 20 == 0:
        print(f"step {step}, loss {loss:.4f}, 412 ms", flush=True)
    if step == 150 and task.rank() == 2 and task.attempt() == 1:
        os.kill(os.getpid(), 9)
"""


async def a_busy_cluster(server: Running) -> None:
    """Workers in racks with gangs on them, others pending, and a day of samples."""
    call, random = server.call, Random(7)
    for name, fields in QUEUES.items():
        await call("PUT", f"/queues/{name}", fields)
    names = [f"w-{number:02}" for number in range(1, WORKERS + 1)]
    for number, name in enumerate(names):
        resources = {"gpu": GPUS, "cpu": 64, "memory": "512Gi"}
        tags = {"rack": str(number // 8 + 1), "zone": "ab"[number // 16]}
        worker = {"id": name, "resources": resources, "tags": tags, "slots": 16}
        await call("POST", "/workers/register", worker)
    for queue, name, tasks, gpus, priority in JOBS:
        role = {
            "command": "python train.py",
            "replicas": tasks,
            "resources": {"gpu": gpus, "cpu": gpus * 5, "memory": f"{gpus * 40}Gi"},
        }
        job = {
            "name": name,
            "namespace": queue.partition("-")[0],
            "queue": queue,
            "priority": priority,
            "roles": {"worker": role},
            "time_limit": "6h",
        }
        await call("POST", "/jobs", job)
        await asyncio.sleep(0.15)
    for name in names:
        while (await call("GET", f"/jobs/next?worker_id={name}")).status == 200:
            pass
    await call("POST", "/workers/w-18/cordon?reason=3+jobs+failed+here+first")
    await call("POST", "/workers/w-30/cordon?reason=new+fans")
    now, used = wall_clock(), 150.0
    samples = []
    for minute in range(24 * 60, 0, -1):
        used = min(252.0, max(90.0, used + random.uniform(-9, 10) + (2 if minute < 40 else 0)))
        samples.append(
            UsageSample(
                *(now - minute * MINUTE, WORKERS * GPUS * 1000, int(used) * 1000, 9, 5),
                ended={"done": 1, "failed": minute % 97 == 0, "cancelled": minute % 300 == 0},
            )
        )
    await server.services.usage.load()
    server.services.usage._samples.extend(samples)
    await server.services.usage.sample()
    await server.services.store.put_note(Note("standby", "srv-2", now, "http://10.0.0.2:8080"))


async def take(page: Page, url: str, theme: str, folder: Path) -> None:
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    for name in PAGES:
        await page.goto(f"{url}/#/{name}")
        await page.locator("main[aria-busy=false] .panel").first.wait_for()
        await page.get_by_text("· live").wait_for()
        await page.screenshot(path=str(folder / f"{name}-{theme}.png"))


async def take_job(page: Page, fleet: Fleet, theme: str, folder: Path) -> None:
    """A gang of 8 ranks that lost one, and the page to submit another."""
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    role = {
        "replicas": 8,
        "command": [sys.executable, "-c", TRAIN],
        "resources": {"gpu": 1},
    }
    spec = {"name": f"pretrain-{theme}", "checkpoint": "all", "roles": {"worker": role}}
    [job] = await asyncio.to_thread(fleet.submit, json.dumps(spec))
    await asyncio.to_thread(
        fleet.until,
        job,
        lambda seen: seen.attempt == 2 and seen.progress and seen.progress.step > 330,
    )
    await page.goto(f"{fleet.url}/#/job/{job}")
    await page.locator("svg .mark.first-failure").wait_for()
    await page.wait_for_timeout(400)
    await page.screenshot(path=str(folder / f"job-{theme}.png"))
    await asyncio.to_thread(fleet.client.cancel, job)
    await asyncio.to_thread(fleet.ends, job)
    await page.goto(f"{fleet.url}/#/submit")
    await page.locator("textarea").wait_for()
    await page.wait_for_timeout(1500)  # the server has checked the text
    await page.screenshot(path=str(folder / f"submit-{theme}.png"))


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 1000})
        async with serving(MemoryStore(clock=wall_clock), name="srv-1") as server:
            await a_busy_cluster(server)
            for theme in THEMES:
                await take(page, server.url, theme, folder)
            await page.goto("about:blank")  # ends the stream of events
        with tempfile.TemporaryDirectory() as state, Fleet(Path(state)) as fleet:
            for number in range(3, 7):
                fleet.work(f"w-0{number}", "--resources=gpu=2,cpu=8")
            for theme in THEMES:
                await take_job(page, fleet, theme, folder)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
