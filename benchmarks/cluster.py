"""A whole cluster on this machine, as its users have it, beside HyperQueue.

`phalanx serve` on a SQLite file that is flushed with every commit, and `phalanx worker` as often as
needed: real processes, on the disk of the current directory. HyperQueue keeps its state in memory.
Both are up at the same time and take turns, so that whatever else the machine does slows down both.
"""

import os
import select
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from benchmarks.contenders import Contender, Phalanx, phalanx_here
from benchmarks.hyperqueue import hyperqueue_here, is_installed
from benchmarks.stores import _folder
from benchmarks.tables import Goal, table

WORKERS = 16
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
TASKS, GANGS, GANG = 1_000, 200, 4
STARTS, START = 20, 8
WAITING = 10_000
KILLS = 5

PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024
#: The first thing a rank does. Bash tells the time without starting another process.
STAMP = "echo $EPOCHREALTIME $$ > $STAMPS/${RANK:-$HQ_TASK_ID}.${PHALANX_ATTEMPT:-1}"

# The rows

TASK_RATE = f"{TASKS:,} tasks of one process, tasks/s"
GANG_RATE = f"{GANGS} gangs of {GANG} on {WORKERS} workers, gangs/s"
START_MS = f"submitted until the last of {START} ranks runs, ms"
SKEW_MS = "  from the first rank to the last, ms"
AGAIN_S = f"one of {START} ranks is killed, until all run again, s"
GONE_S = "  until the others are gone, s"
JOB_KB = f"one of {WAITING:,} waiting jobs in memory, KB"

#: What HyperQueue does on a quiet machine with two cores, without keeping anything on disk.
GOALS = {
    TASK_RATE: Goal("tasks/s", at_least=410),
    GANG_RATE: Goal("gangs/s", at_least=65),
    START_MS: Goal("ms", at_most=24),
    SKEW_MS: Goal("ms", at_most=5),
    AGAIN_S: Goal("s", at_most=0.5),
    JOB_KB: Goal("KB", at_most=2.2),
}
NOTES = """
  The median; the 95th of a hundred in brackets. HyperQueue is given the tasks in one job, and a
  gang as one task on several nodes, of which it starts one process; Phalanx starts all of them. The
  ranks that start together are a job of as many tasks there. It restarts nothing as one.
"""

#: What was measured, by what it is and whose.
Found = dict[tuple[str, str], list[float]]


def run() -> None:
    found: Found = defaultdict(list)
    with _folder() as folder, ExitStack() as stack:
        ours = stack.enter_context(phalanx_here(folder / "phalanx", WORKERS))
        contenders: list[Contender] = [ours]
        if is_installed():
            contenders.append(stack.enter_context(hyperqueue_here(folder / "hyperqueue", WORKERS)))
        else:
            print("  HyperQueue is not installed, so Phalanx is measured alone")
        stamps = (folder / f"stamps-{number}" for number in count())
        for _ in range(ROUNDS):
            for each in contenders:
                measure_rates(each, found)
        for _ in range(STARTS):
            for each in contenders:
                measure_start(each, next(stamps), found)
        for _ in range(KILLS):
            measure_recovery(ours, next(stamps), found)
        for each in contenders:
            measure_memory(each, found)
    show(found)


def measure_rates(contender: Contender, found: Found) -> None:
    works: tuple[tuple[str, int, Callable[[], None]], ...] = (
        (TASK_RATE, TASKS, lambda: contender.tasks(TASKS, ["true"])),
        (GANG_RATE, GANGS, lambda: contender.gangs(GANGS, GANG, ["true"])),
    )
    for what, number, work in works:
        cpu_s, began = contender.cpu_s(), time.perf_counter()
        work()
        found[what, contender.name].append(number / (time.perf_counter() - began))
        kind = "task" if what == TASK_RATE else "gang"
        for part, spent_s in contender.cpu_s().items():
            each = 1_000 * (spent_s - cpu_s[part]) / number
            found[f"  CPU of a {kind}, {part}, ms", contender.name].append(each)


def measure_start(contender: Contender, stamps: Path, found: Found) -> None:
    stamps.mkdir()
    began = time.time()
    contender.ranks(START, ["bash", "-c", STAMP], {"STAMPS": str(stamps)})
    times = [float(stamp.read_text().split()[0]) for stamp in stamps.iterdir()]
    found[START_MS, contender.name].append(1_000 * (max(times) - began))
    found[SKEW_MS, contender.name].append(1_000 * (max(times) - min(times)))


def measure_recovery(ours: Phalanx, stamps: Path, found: Found) -> None:
    """From the death of one rank until the others are gone, and until all of them run again."""
    stamps.mkdir()
    with ours.running_gang(START, ["bash", "-c", f"{STAMP}; exec sleep 600"], str(stamps)):
        victim, *others = (int(text.split()[1]) for text in _attempt(stamps, 1))
        handles = [os.pidfd_open(pid) for pid in others]
        began = time.time()
        os.kill(victim, signal.SIGKILL)
        for handle in handles:
            select.select([handle], [], [])  # until the process has ended
            os.close(handle)
        gone = time.time()
        again = max(float(text.split()[0]) for text in _attempt(stamps, 2))
        found[AGAIN_S, ours.name].append(again - began)
        found[GONE_S, ours.name].append(gone - began)


def _attempt(stamps: Path, attempt: int) -> list[str]:
    """What its ranks have written, once all of them have."""
    while True:
        texts = [file.read_text() for file in stamps.glob(f"*.{attempt}")]
        if len(texts) == START and all(text.endswith("\n") for text in texts):
            return texts
        time.sleep(0.005)


def measure_memory(contender: Contender, found: Found) -> None:
    before = _resident_kb(contender.server)
    contender.wait_in_line(WAITING)
    grown = (_resident_kb(contender.server) - before) / WAITING
    found[JOB_KB, contender.name].append(grown)


def _resident_kb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB


def show(found: Found) -> None:
    lines = []
    for what in dict.fromkeys(what for what, _ in found):
        ours, theirs = (found.get((what, name), []) for name in ("Phalanx", "HyperQueue"))
        ratio = statistics.median(ours) / statistics.median(theirs) if ours and theirs else None
        goal = GOALS.get(what)
        lines.append(
            (
                what,
                _shown(ours),
                _shown(theirs),
                "-" if ratio is None else f"{ratio:,.2f}",
                "" if goal is None else goal.verdict(statistics.median(ours)),
            )
        )
    print("\nA cluster")
    table(("what", "Phalanx", "HyperQueue", "ratio", ""), lines)
    print(NOTES)


def _shown(values: list[float]) -> str:
    if not values:
        return "-"
    text = f"{statistics.median(values):,.4g}"
    if len(values) < STARTS:
        return text
    return f"{text} ({statistics.quantiles(values, n=20)[-1]:,.3g})"
