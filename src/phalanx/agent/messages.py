"""The messages between link and spawner, and their framing on the socket.

The spawner opens with `SpawnerSnapshot`. After that the link sends instructions, and the spawner
sends the status of every attempt that changed. A frame is a length in four bytes, then MessagePack.
"""

import msgspec

from phalanx.core.time_units import Micros

#: An attempt is identified by its task's id and its epoch.
AttemptKey = tuple[str, int]

#: The brackets of elements of arrays are not allowed in the names of containers, and have a meaning
#: for shells.
_IN_NAMES = str.maketrans("[", "_", "]")


def attempt_name(key: AttemptKey) -> str:
    """The name of an attempt's folders, control group and container: `j-7kq2m4xd_7.0.1`."""
    task, epoch = key
    return f"{task.translate(_IN_NAMES)}.{epoch}"


class AttemptStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of an attempt on this worker, as the spawner reports it."""

    id: str
    epoch: int
    exit_code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: the spawner had sent it a stop signal
    start_error: str | None = None  #: why its program could not be started
    start_refused: bool = False  #: another try on this worker would fail too
    gone: bool = False  #: no process of it exists, and its exit status is unknown
    output_bytes: int = 0  #: the size of its output, once it has ended
    fence_grace: Micros | None = None  #: the grace of a task that must stop when its lease ends
    prepared: bool = False  #: its container exists, and its program can be started
    started: bool = False  #: its program runs, or ran
    memory_used: int | None = None  #: its peak in bytes, if the kernel killed it for memory
    note: str = ""  #: what its worker knows about the reason of its failure
    problem: str = ""  #: what went wrong on the worker without ending it

    @property
    def key(self) -> AttemptKey:
        return self.id, self.epoch

    @property
    def is_waiting(self) -> bool:
        """Whether it is a container whose program has not been started yet."""
        return self.prepared and not self.started and not self.has_ended

    @property
    def has_ended(self) -> bool:
        return (
            self.exit_code is not None
            or self.signal is not None
            or self.start_error is not None
            or self.gone
        )


# From the spawner


class SpawnerSnapshot(msgspec.Struct, frozen=True, tag=True):
    incarnation: str  #: identifies this spawner process; a new one has none of its tasks
    link_count: int  #: the number of links it has had, this one included
    attempts: tuple[AttemptStatus, ...]
    unenforced: dict[str, str] = {}  #: by limit that this machine does not enforce: why
    control_group: str = ""  #: the name of the group that those of all attempts are below


class AttemptsChanged(msgspec.Struct, frozen=True, tag=True):
    attempts: tuple[AttemptStatus, ...]


SpawnerMessage = SpawnerSnapshot | AttemptsChanged


# From the link


class TaskLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a task, as far as the machine enforces them."""

    memory: int | None = None  #: bytes
    cpu: int | None = None  #: thousandths of a CPU, as a weight among tasks
    cpu_quota: bool = False  #: the task uses no more than `cpu` even if CPUs are idle
    processes: int | None = None  #: processes and threads

    def uses(self, controller: str) -> bool:
        """Whether the controller is needed. Every task has a weight among those that use CPUs."""
        if controller == "memory":
            return self.memory is not None
        return controller == "cpu" or self.processes is not None


class TaskUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user that a task runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = ""
    home: str = ""


class RunSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secrets of an attempt: never written to a disk, the journal or a log."""

    env: dict[str, str] = {}  #: variables for the process; they win over `RunAttempt.env`
    redact: tuple[str, ...] = ()  #: values that are masked in the output

    def __repr__(self) -> str:
        return f"RunSecrets({len(self.env)} variables)"


class ContainerCalls(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the spawner runs a container that the link has created."""

    runtime: str  #: podman or docker
    process_tag: int  #: its processes have it from their start
    init: tuple[str, ...]  #: the command that creates its monitor, which then waits
    start: tuple[str, ...]  #: the command that lets its program start
    monitor_pid_file: str  #: written by `init`: the pid of the process that waits for its end
    pid_file: str = ""  #: written by `init`: the pid of its first process; empty under a daemon
    #: The command after which a daemon does not start it any more; empty without a daemon.
    remove: tuple[str, ...] = ()


class PrepareStart(msgspec.Struct, frozen=True, tag=True):
    """An attempt is about to be started: do what makes its start quick."""


class RunAttempt(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int
    command: str | tuple[str, ...]
    env: dict[str, str]
    grace: Micros
    workdir: str | None = None
    time_limit: Micros | None = None
    fence: bool = False
    limits: TaskLimits = TaskLimits()
    user: TaskUser | None = None  #: None for the spawner's own user
    secrets: RunSecrets | None = None

    @property
    def key(self) -> AttemptKey:
        return self.id, self.epoch


class PrepareContainer(msgspec.Struct, frozen=True, tag=True):
    """Create the processes of a container; its program starts with `StartContainer`."""

    run: RunAttempt
    calls: ContainerCalls


class StartContainer(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


class StopAttempt(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


class ForgetAttempt(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


class StopAll(msgspec.Struct, frozen=True, tag=True):
    kill: bool = False  #: kill at once, without grace


class QuitWhenIdle(msgspec.Struct, frozen=True, tag=True):
    """Exit as soon as no attempt runs."""


LinkMessage = (
    PrepareStart
    | RunAttempt
    | PrepareContainer
    | StartContainer
    | StopAttempt
    | ForgetAttempt
    | StopAll
    | QuitWhenIdle
)

_encode = msgspec.msgpack.Encoder().encode
_LENGTH_BYTES = 4


def frame(message: SpawnerMessage | LinkMessage) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameDecoder:
    """Turns a stream of bytes into whole message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        self._buffer += data
        bodies = []
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[_LENGTH_BYTES:end]))
            del self._buffer[:end]
        return bodies


decode_spawner_message = msgspec.msgpack.Decoder(SpawnerMessage).decode
decode_link_message = msgspec.msgpack.Decoder(LinkMessage).decode
