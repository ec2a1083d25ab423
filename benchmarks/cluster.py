"""A whole cluster on this machine, compared with HyperQueue.

Phalanx runs as real `phalanx serve` and `phalanx worker` processes, with a SQLite file on the disk
of the current directory that is flushed with every commit. HyperQueue keeps its state in memory.
Both run at the same time and take turns, so that other load on the machine slows down both.
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

from benchmarks.contenders import Contender, Phalanx, phalanx_cluster
from benchmarks.hyperqueue import hyperqueue_cluster, is_installed
from benchmarks.stores import folder_on_disk
from benchmarks.tables import Goal, table

WORKERS = 16
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
TASKS, GANGS, GANG = 1_000, 200, 4
STARTS, START = 20, 8
PENDING = 10_000
KILLS = 5

PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024
#: The first command of a rank. Bash has the time without starting another process.
STAMP = "echo $EPOCHREALTIME $$ > $STAMPS/${RANK:-$HQ_TASK_ID}.${PHALANX_ATTEMPT:-1}"

# The rows

TASK_RATE = f"{TASKS:,} single tasks, tasks/s"
GANG_RATE = f"{GANGS} gangs of {GANG} tasks on {WORKERS} workers, gangs/s"
START_MS = f"from submission until all {START} ranks run, ms"
SKEW_MS = "  from the first to the last rank, ms"
RESTART_S = f"from the death of one of {START} ranks until all run again, s"
STOP_S = "  until the other ranks have stopped, s"
JOB_KB = f"server memory per job, with {PENDING:,} pending jobs, KB"

#: The results of HyperQueue on two idle cores, without any state on disk.
GOALS = {
    TASK_RATE: Goal("tasks/s", at_least=410),
    GANG_RATE: Goal("gangs/s", at_least=65),
    START_MS: Goal("ms", at_most=24),
    SKEW_MS: Goal("ms", at_most=5),
    RESTART_S: Goal("s", at_most=0.5),
    JOB_KB: Goal("KB", at_most=2.2),
}
NOTES = """
  Medians, with the 95th percentile in brackets. HyperQueue gets the single tasks as one job. A gang
  is one task on several nodes there, for which it starts one process; Phalanx starts a process for
  every rank. Where all ranks run, HyperQueue gets a job with as many tasks. It has no gang restart.
"""

#: Measured values by row and scheduler.
Measurements = dict[tuple[str, str], list[float]]


def run() -> None:
    measured: Measurements = defaultdict(list)
    with folder_on_disk() as folder, ExitStack() as stack:
        phalanx = stack.enter_context(phalanx_cluster(folder / "phalanx", WORKERS))
        contenders: list[Contender] = [phalanx]
        if is_installed():
            contenders.append(
                stack.enter_context(hyperqueue_cluster(folder / "hyperqueue", WORKERS))
            )
        else:
            print("  HyperQueue is not installed: measuring Phalanx alone")
        stamps = (folder / f"stamps-{number}" for number in count())
        for _ in range(ROUNDS):
            for each in contenders:
                measure_rates(each, measured)
        for _ in range(STARTS):
            for each in contenders:
                measure_start(each, next(stamps), measured)
        for _ in range(KILLS):
            measure_restart(phalanx, next(stamps), measured)
        for each in contenders:
            measure_memory(each, measured)
    show(measured)


def measure_rates(contender: Contender, measured: Measurements) -> None:
    works: tuple[tuple[str, int, Callable[[], None]], ...] = (
        (TASK_RATE, TASKS, lambda: contender.tasks(TASKS, ["true"])),
        (GANG_RATE, GANGS, lambda: contender.gangs(GANGS, GANG, ["true"])),
    )
    for what, number, work in works:
        cpu_s, began = contender.cpu_s(), time.perf_counter()
        work()
        measured[what, contender.name].append(number / (time.perf_counter() - began))
        kind = "task" if what == TASK_RATE else "gang"
        for part, spent_s in contender.cpu_s().items():
            each = 1_000 * (spent_s - cpu_s[part]) / number
            measured[f"  CPU time per {kind}, {part}, ms", contender.name].append(each)


def measure_start(contender: Contender, stamps: Path, measured: Measurements) -> None:
    stamps.mkdir()
    began = time.time()
    contender.ranks(START, ["bash", "-c", STAMP], {"STAMPS": str(stamps)})
    times = [float(stamp.read_text().split()[0]) for stamp in stamps.iterdir()]
    measured[START_MS, contender.name].append(1_000 * (max(times) - began))
    measured[SKEW_MS, contender.name].append(1_000 * (max(times) - min(times)))


def measure_restart(phalanx: Phalanx, stamps: Path, measured: Measurements) -> None:
    """Kill one rank; measure until the others have stopped, and until all run again."""
    stamps.mkdir()
    with phalanx.running_gang(START, ["bash", "-c", f"{STAMP}; exec sleep 600"], str(stamps)):
        victim, *others = (int(text.split()[1]) for text in _attempt(stamps, 1))
        handles = [os.pidfd_open(pid) for pid in others]
        began = time.time()
        os.kill(victim, signal.SIGKILL)
        for handle in handles:
            select.select([handle], [], [])  # returns when the process has ended
            os.close(handle)
        gone = time.time()
        again = max(float(text.split()[0]) for text in _attempt(stamps, 2))
        measured[RESTART_S, phalanx.name].append(again - began)
        measured[STOP_S, phalanx.name].append(gone - began)


def _attempt(stamps: Path, attempt: int) -> list[str]:
    """The stamps of all ranks of an attempt, once all have written theirs."""
    while True:
        texts = [file.read_text() for file in stamps.glob(f"*.{attempt}")]
        if len(texts) == START and all(text.endswith("\n") for text in texts):
            return texts
        time.sleep(0.005)


def measure_memory(contender: Contender, measured: Measurements) -> None:
    before = _resident_kb(contender.server)
    contender.submit_pending(PENDING)
    grown = (_resident_kb(contender.server) - before) / PENDING
    measured[JOB_KB, contender.name].append(grown)


def _resident_kb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB


def show(measured: Measurements) -> None:
    lines = []
    for what in dict.fromkeys(what for what, _ in measured):
        ours, theirs = (measured.get((what, name), []) for name in ("Phalanx", "HyperQueue"))
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
    print("\nCluster")
    table(("measurement", "Phalanx", "HyperQueue", "ratio", ""), lines)
    print(NOTES)


def _shown(values: list[float]) -> str:
    if not values:
        return "-"
    text = f"{statistics.median(values):,.4g}"
    if len(values) < STARTS:
        return text
    return f"{text} ({statistics.quantiles(values, n=20)[-1]:,.3g})"
