"""Views of the plain protocol, with its own field names.

The plain protocol is for workers and scripts without the agent. Its names (`status`, `gang_id`,
`reservation_epoch`, …) are used on its endpoints only; the native views are in `wire/jobs.py`.
"""

from typing import Any

import msgspec

from phalanx.core.model import Exit
from phalanx.core.states import State
from phalanx.wire.jobs import SubmitReply


class PlainTaskView(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    gang_id: str  #: the job's id
    gang_index: int  #: the task's number in the job
    gang_size: int
    role: str
    status: State
    command: str  #: for a shell
    resources: dict[str, Any]
    priority: int
    queue_name: str
    max_retries: int
    attempts: int  #: how often the task was released to run
    created_at: str
    #: The attempt that every report has to name; `preemption_epoch` is the same number.
    reservation_epoch: int
    preemption_epoch: int
    argv: tuple[str, ...] | None = None  #: the command as a list, if it was given as one
    depends_on: tuple[str, ...] = ()
    worker_id: str | None = None
    devices: tuple[int, ...] = ()
    reserved_at: str | None = None
    started_at: str | None = None
    done_at: str | None = None
    exit: Exit | None = None
    checkpoint_bytes: int | None = None


class PlainClaimView(PlainTaskView, frozen=True, omit_defaults=True, kw_only=True):
    """A claimed task, with everything that its process needs."""

    grace_s: float
    workdir: str | None = None
    env: dict[str, str] = {}
    image: str | None = None
    args: tuple[str, ...] = ()  #: arguments for the image's entrypoint


class PlainSubmitReply(SubmitReply, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a submission in the short form."""

    status: State | None = None  #: of a job with one task
    gang_id: str | None = None  #: of a job with several tasks
    tasks: tuple[str, ...] | None = None  #: their ids


class PlainHeartbeatReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Empty while the task may run; `preempt` and the attempt when it must stop."""

    action: str | None = None
    preemption_epoch: int | None = None
