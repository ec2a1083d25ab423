"""What link and spawner say to each other over their socket, and how it is framed.

The spawner opens with `Welcome`; after that the link gives orders and the spawner tells what became
of the attempts. A message is its length in four bytes, then MessagePack.
"""

import msgspec

from phalanx.core.spec.job import Micros

#: A task and its epoch: what an attempt is called everywhere.
Key = tuple[str, int]


class Life(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt as the spawner knows it. It is over once it has ended in one of three ways."""

    id: str
    epoch: int
    exit_code: int | None = None
    signal: int | None = None
    signalled: bool = False  #: we had told it to stop
    failure: str | None = None  #: why it could not be started
    gone: bool = False  #: nothing is left of it, and nobody saw how it ended
    output_bytes: int = 0  #: all that it has written, once it is over
    fence: Micros | None = None  #: the grace of a task that must stop when its lease ends
    begun: bool = False  #: its program runs, or ran

    @property
    def key(self) -> Key:
        return self.id, self.epoch

    @property
    def is_over(self) -> bool:
        return (
            self.exit_code is not None
            or self.signal is not None
            or self.failure is not None
            or self.gone
        )


# From the spawner


class Welcome(msgspec.Struct, frozen=True, tag=True):
    incarnation: str  #: of the spawner: its tasks are those of no other
    links: int  #: how many links it has had, this one included
    lives: tuple[Life, ...]


class AttemptChanged(msgspec.Struct, frozen=True, tag=True):
    lives: tuple[Life, ...]


Told = Welcome | AttemptChanged


# From the link


class RunAttempt(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int
    command: str | tuple[str, ...]
    env: dict[str, str]
    grace: Micros
    workdir: str | None = None
    time_limit: Micros | None = None
    fence: bool = False

    @property
    def key(self) -> Key:
        return self.id, self.epoch


class StopAttempt(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


class ForgetAttempt(msgspec.Struct, frozen=True, tag=True):
    id: str
    epoch: int


class StopAll(msgspec.Struct, frozen=True, tag=True):
    kill: bool = False  #: at once, without grace


class Lease(msgspec.Struct, frozen=True, tag=True):
    """The server has heard of us; sent before every `RunAttempt` of a fenced task as well."""

    sent_at: float  #: of the sync that was answered, on the boot-time clock
    lost_after: float


class Quit(msgspec.Struct, frozen=True, tag=True):
    """End as soon as nothing runs any more."""


Order = RunAttempt | StopAttempt | ForgetAttempt | StopAll | Lease | Quit

_encode = msgspec.msgpack.Encoder().encode
_HEAD_BYTES = 4


def framed(message: Told | Order) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


class Frames:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._held += data
        found = []
        while len(self._held) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._held[:_HEAD_BYTES], "big")
            if len(self._held) < end:
                break
            found.append(bytes(self._held[_HEAD_BYTES:end]))
            del self._held[:end]
        return found


read_told = msgspec.msgpack.Decoder(Told).decode
read_order = msgspec.msgpack.Decoder(Order).decode
