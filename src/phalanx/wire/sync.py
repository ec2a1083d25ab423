"""The agent's one call: what changed on the worker, and what should change there.

Level-triggered: reports and orders say how things are, so a lost or repeated message does no harm.
"""

from enum import StrEnum

import msgspec

from phalanx.core.model import Blob
from phalanx.core.spec.job import Micros

#: The number of an attempt is the job's epoch when the task was reserved.
_NAMES = {"epoch": "attempt"}


class Reported(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    EXITED = "exited"
    SPAWN_FAILED = "spawn_failed"
    GONE = "gone"  #: nothing of the attempt is left, and it is not known how it ended


class Want(StrEnum):
    PREPARE = "prepare"
    RUN = "run"
    STOP = "stop"
    FORGET = "forget"


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True, rename=_NAMES):
    id: str
    epoch: int
    state: Reported
    exit_code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: the agent had told it to stop
    message: str = ""  #: why it could not be spawned
    step: int | None = None
    safe: bool = False  #: work up to now would survive a stop


class SyncRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    incarnation: str
    seq: int
    #: Of the leader it last heard. What was said to another one may be old by now, so a leader
    #: that finds a different term here only asks for the whole inventory.
    term: int = 0
    full: bool = False  #: the tasks are all that the worker has
    tasks: tuple[TaskReport, ...] = ()
    wait: float = 0.0
    #: The `seq` of the last call whose answer has arrived: what was said in it is not said again.
    heard: int = -1
    leaving: bool = False  #: the agent is about to end; what it runs has to go elsewhere


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that an agent needs to run a task."""

    command: str | tuple[str, ...]
    env: dict[str, str]
    grace: Micros
    workdir: str | None = None
    time_limit: Micros | None = None
    fence: bool = False
    checkpoint: Blob | None = None
    image: str | None = None  #: an agent without a container runtime must not run it bare
    args: tuple[str, ...] = ()  #: for the image's own program, where there is no command


class TaskInstruction(msgspec.Struct, frozen=True, omit_defaults=True, rename=_NAMES):
    id: str
    epoch: int
    want: Want
    spec: TaskSpec | None = None


class SyncReply(msgspec.Struct, frozen=True, omit_defaults=True):
    cluster_id: str
    term: int
    lost_after: float
    tasks: tuple[TaskInstruction, ...] = ()
    full: bool = False  #: say in the next sync all that you have
