"""What happens in a run, and when, from the seed alone: the jobs and the faults."""

from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

#: The settings of a run that are not drawn.
WORKERS = 8
GPUS = 2
#: Longer than a worker may be silent (30 s by default).
_LONG_S = 40.0
#: Runs shorter than this have no fault that outlasts the silence of a worker: it could not end.
_LONG_RUN_S = 120.0


class FaultKind(StrEnum):
    KILL_TASK = "kill task"
    FREEZE_TASK = "freeze task"
    KILL_LINK = "kill link"
    FREEZE_LINK = "freeze link"
    KILL_SPAWNER = "kill spawner"
    FREEZE_SPAWNER = "freeze spawner"
    KILL_GUARD = "kill guard"
    FREEZE_GUARD = "freeze guard"
    FREEZE_TWO = "freeze two agent processes"
    KILL_WORKER = "kill worker"
    FREEZE_WORKER = "freeze worker"
    RESTART_WORKER = "restart worker"
    DRAIN_WORKER = "drain worker"
    CUT_WORKER = "cut worker off"
    MUTE_WORKER = "lose packets of worker"
    DEAFEN_WORKER = "lose answers to worker"
    DELAY_WORKER = "delay worker"
    FILL_DISK = "fill disk"
    KILL_SERVER = "kill server"
    FREEZE_SERVER = "freeze server"
    RESTART_SERVER = "restart server"
    CUT_SERVER = "cut server off"
    RESTART_DATABASE = "restart database"
    FREEZE_DATABASE = "freeze database"


class FaultShape(NamedTuple):
    """How often a fault is drawn, how long it lasts, and whether it may outlast `lost_after`."""

    weight: int
    shortest_s: float = 0.0
    longest_s: float = 0.0
    may_be_long: bool = False


SHAPES = {
    FaultKind.KILL_TASK: FaultShape(6),
    FaultKind.FREEZE_TASK: FaultShape(2, 1, 6),
    FaultKind.KILL_LINK: FaultShape(4),
    FaultKind.FREEZE_LINK: FaultShape(3, 1, 15, may_be_long=True),
    FaultKind.KILL_SPAWNER: FaultShape(4),
    FaultKind.FREEZE_SPAWNER: FaultShape(2, 1, 10, may_be_long=True),
    FaultKind.KILL_GUARD: FaultShape(2),
    FaultKind.FREEZE_GUARD: FaultShape(1, 1, 10),
    FaultKind.FREEZE_TWO: FaultShape(2, 1, 10, may_be_long=True),
    FaultKind.KILL_WORKER: FaultShape(4, 1, 12, may_be_long=True),
    FaultKind.FREEZE_WORKER: FaultShape(2, 1, 10),
    FaultKind.RESTART_WORKER: FaultShape(2, 0.5, 5),
    FaultKind.DRAIN_WORKER: FaultShape(2, 3, 10),
    FaultKind.CUT_WORKER: FaultShape(4, 1, 15, may_be_long=True),
    FaultKind.MUTE_WORKER: FaultShape(3, 1, 15, may_be_long=True),
    FaultKind.DEAFEN_WORKER: FaultShape(3, 1, 15, may_be_long=True),
    FaultKind.DELAY_WORKER: FaultShape(2, 2, 10),
    FaultKind.FILL_DISK: FaultShape(3, 1, 8),
    FaultKind.KILL_SERVER: FaultShape(4, 0.5, 12),
    FaultKind.FREEZE_SERVER: FaultShape(3, 1, 15),
    FaultKind.RESTART_SERVER: FaultShape(2, 0.5, 3),
    FaultKind.CUT_SERVER: FaultShape(2, 1, 10),
    FaultKind.RESTART_DATABASE: FaultShape(2),
    FaultKind.FREEZE_DATABASE: FaultShape(1, 1, 8),
}


class Fault(NamedTuple):
    at_s: float
    kind: FaultKind
    target: int  #: number of the worker or server; of a task, a number that picks one
    seconds: float

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at_s:7.1f} s  {self.kind} {self.target}{lasting}"


class PlannedJob(NamedTuple):
    at_s: float
    name: str
    document: dict[str, Any]
    must_fail: bool = False  #: its tasks exit with a code other than 0
    cancel_after_s: float | None = None

    @property
    def may_fail(self) -> bool:
        """Whether it may fail when a task is lost after another one is done."""
        default = "fail" if self.document["checkpoint"] == "none" else "restart"
        return bool(self.document.get("on_partial_completion", default) == "fail")


class Schedule(NamedTuple):
    jobs: list[PlannedJob]
    faults: list[Fault]


def schedule(seed: int, seconds: float, *, has_database: bool, program: list[str]) -> Schedule:
    """The jobs and faults of a run. The same arguments give the same schedule."""
    random = Random(seed)
    return Schedule(_jobs(random, seconds, program), _faults(random, seconds, has_database))


def _faults(random: Random, seconds: float, has_database: bool) -> list[Fault]:
    database = (FaultKind.RESTART_DATABASE, FaultKind.FREEZE_DATABASE)
    kinds = [kind for kind in FaultKind if has_database or kind not in database]
    weights = [SHAPES[kind].weight for kind in kinds]
    faults, at_s = [], 4.0
    while at_s < seconds:
        [kind] = random.choices(kinds, weights)
        shape = SHAPES[kind]
        lasting = random.uniform(shape.shortest_s, shape.longest_s)
        is_long = random.random() < 0.25 and shape.may_be_long and seconds >= _LONG_RUN_S
        if is_long:
            lasting += _LONG_S
        elif seconds < _LONG_RUN_S:
            lasting = min(lasting, 5.0)
        faults.append(Fault(at_s, kind, random.randrange(1000), lasting))
        at_s += random.expovariate(1 / 1.5)
    return faults


def _jobs(random: Random, seconds: float, program: list[str]) -> list[PlannedJob]:
    jobs, at_s, number = [], 0.0, 0
    longest = 32 if seconds < _LONG_RUN_S else 100
    while at_s < seconds:
        jobs.append(_job(random, at_s, f"c-{number}", longest, program))
        at_s += random.expovariate(1 / 1.4)
        number += 1
    return jobs


def _job(random: Random, at_s: float, name: str, longest: int, program: list[str]) -> PlannedJob:
    size = random.choice([1, 1, 2, 2, 3, 4, 4, 6, 8])
    restart = random.choice(["gang", "gang", "gang", "task"])
    checkpoint = random.choice(["none", "each", "all", "all"])
    must_fail = random.random() < 0.06
    document: dict[str, Any] = {
        "name": name,
        "priority": random.choice([0, 0, 0, 5, 10]),
        "restart": restart,
        "checkpoint": checkpoint,
        "fence": random.random() < 0.6,
        "grace": random.choice(["2s", "5s"]),
        "backoff": "100ms",
        "max_retries": 2 if must_fail else 1000,
        "roles": {
            "worker": {
                "command": program,
                "replicas": size,
                "min": size if random.random() < 0.7 else max(1, size - 2),
                "resources": {"gpu": 1},
                "env": {
                    "CHAOS_STEPS": str(random.choice([2, 4, 8, random.randint(8, longest)])),
                    "CHAOS_STAGGER": str(random.choice([0, 0, 1, 4])),
                    "CHAOS_CODE": "3" if must_fail else "0",
                    "CHAOS_RESTART": restart,
                    "CHAOS_CHECKPOINT": checkpoint,
                },
            }
        },
    }
    if restart == "task":
        document["match"] = random.choice(["only-waiting", "once-satisfied"])
    partial = random.choice([None, "restart", "restart", "fail"])
    if partial is not None:
        document["on_partial_completion"] = partial
    cancel = random.uniform(0.5, 10) if random.random() < 0.06 else None
    return PlannedJob(at_s, name, document, must_fail, cancel)
