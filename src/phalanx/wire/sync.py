"""The agent's sync call: reports about the worker's tasks, and instructions in return.

The protocol is level-triggered: reports and instructions describe states, not changes, so that a
lost or repeated message does no harm.
"""

from enum import StrEnum

import msgspec

from phalanx.core.events import AbnormalValue, Step
from phalanx.core.model import Blob
from phalanx.core.spec.security import ContainerSecurity
from phalanx.core.spec.watch import ValueRules
from phalanx.core.time_units import Micros

#: The values that a task can report.
VALUES_LIMIT = 16
#: The abnormal values in one report.
ABNORMAL_LIMIT = 64

#: The number of an attempt is the job's epoch when the task was reserved.
_NAMES = {"epoch": "attempt"}


class Reported(StrEnum):
    PREPARING = "preparing"  #: the agent cannot accept the attempt yet; `message` says why
    ACCEPTED = "accepted"
    RUNNING = "running"
    EXITED = "exited"
    SPAWN_FAILED = "spawn_failed"
    START_REFUSED = "start_refused"  #: like spawn_failed; another try here would fail too
    GONE = "gone"  #: the attempt has no process, and how it ended is unknown


class Want(StrEnum):
    PREPARE = "prepare"
    RUN = "run"
    STOP = "stop"
    FORGET = "forget"


class TaskProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task has reported about its work."""

    step: Step | None = None
    total: Step | None = None  #: the last step that the task will reach
    safe: bool = False  #: the work so far would survive a stop
    saved_step: Step | None = None  #: the step at which it was saved
    values: dict[str, float | None] = {}  #: the latest; null is not a finite number
    abnormal: tuple[AbnormalValue, ...] = ()  #: values that break rules of `watch`

    def after(self, earlier: "TaskProgress") -> "TaskProgress":
        """Both together; what is missing here is taken from the earlier one."""
        return TaskProgress(
            step=earlier.step if self.step is None else self.step,
            total=earlier.total if self.total is None else self.total,
            safe=self.safe or earlier.safe,
            saved_step=self.saved_step if self.safe else earlier.saved_step,
            values=earlier.values | self.values,
            abnormal=(*earlier.abnormal, *self.abnormal)[:ABNORMAL_LIMIT],
        )


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True, rename=_NAMES):
    id: str
    epoch: int
    state: Reported
    exit_code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: the agent had signalled it to stop
    #: Why the process could not be started, what explains its exit, or what is being prepared.
    message: str = ""
    memory_used: int | None = None  #: its peak in bytes, if the kernel killed it for memory
    progress: TaskProgress | None = None  #: since the last report
    problem: str = ""  #: what is wrong with the files of the task; it does not end the task
    output_bytes: int = 0  #: how much it has written, once it has exited


class SyncRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    incarnation: str
    seq: int
    #: The term of the last leader that answered. A leader with another term ignores the reports,
    #: which may be outdated, and asks for a full inventory.
    term: int = 0
    full: bool = False  #: `tasks` is the worker's full inventory
    tasks: tuple[TaskReport, ...] = ()
    wait: float = 0.0
    #: The `seq` of the last call whose answer has arrived: its instructions are not repeated.
    heard: int = -1
    leaving: bool = False  #: the agent is shutting down; its tasks are evicted


class TaskSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secrets of a task, with their values.

    Kept apart from everything else about the task, so that an agent can keep them in memory: they
    must not be written to a disk, a journal, a log or the configuration of a container.
    """

    env: dict[str, str] = {}  #: variables; they win over those of `TaskSpec.env`
    files: dict[str, str] = {}  #: by name, the texts of files on a tmpfs
    redact: tuple[str, ...] = ()  #: the values themselves, which are masked in the output
    registry_auth: str = ""  #: credentials for the pull, in the form of Docker's config.json

    def __repr__(self) -> str:
        return f"TaskSecrets({len(self.env)} variables, {len(self.files)} files)"


class RequiredSignature(msgspec.Struct, frozen=True):
    """A signature that an image must have: by one of the keys of a trust policy."""

    policy: str
    keys: tuple[str, ...]  #: PEM


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that an agent needs to run a task."""

    command: str | tuple[str, ...]
    env: dict[str, str]
    grace: Micros
    workdir: str | None = None
    time_limit: Micros | None = None
    fence: bool = False
    checkpoint: Blob | None = None
    image: str | None = None  #: an agent without a container runtime must refuse the task
    args: tuple[str, ...] = ()  #: arguments for the image's entrypoint, where there is no command
    security: ContainerSecurity | None = None
    devices: tuple[int, ...] = ()  #: the GPUs of a task with an image
    memory: int | None = None  #: the bytes that it asks for, which are its limit
    cpu: int | None = None  #: the thousandths of a CPU that it asks for
    namespace: str = "default"
    run_as_user: str | None = None  #: instead of the user of its namespace
    watch: dict[str, ValueRules] = {}  #: the rules for values that it reports
    secrets: TaskSecrets | None = None
    missing_pull_secrets: tuple[str, ...] = ()  #: that the job names and that have no login
    #: To be checked before every start of the image, also if it is present: see
    #: `registry.signatures.verify_image`.
    signatures: tuple[RequiredSignature, ...] = ()


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
    full: bool = False  #: the next sync must have the full inventory
    checkpoint_limit: int = 0  #: the largest checkpoint that the server takes, in bytes
