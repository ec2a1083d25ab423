"""One event, one line: what becomes of records, of the engine's own news, and of other libraries'.

The lines that operators of gang schedulers know keep their words and keys.
"""

import asyncio
import logging
import re
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import msgspec
import structlog

from phalanx.core.cluster import Cluster
from phalanx.core.model import Phase
from phalanx.core.records import (
    AttemptGone,
    DependenciesMet,
    GangReserved,
    GangStarting,
    GangStopped,
    GangStopping,
    Record,
    ReservationLost,
    TaskCheckpointSaved,
    TaskClaimed,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TaskStopped,
    TaskStopTimedOut,
    WorkerCordoned,
    WorkerDeclaredLost,
    WorkSaved,
)
from phalanx.engine.turn import Turn
from phalanx.plan.decisions import Plan
from phalanx.server.options import LogFormat, LogLevel
from phalanx.store.protocol import Leader

Logger = structlog.typing.FilteringBoundLogger
Fields = dict[str, Any]

#: Told only to those who want to see everything.
_ROUTINE = (
    *(TaskStarted, TaskClaimed, TaskDone, GangStarting, AttemptGone, WorkSaved),
    *(TaskCheckpointSaved, DependenciesMet),
)
_ALARMING = (WorkerDeclaredLost, TaskFailed, TaskStopTimedOut, ReservationLost, WorkerCordoned)


class _Unfailing:
    """A line that finds no room on the disk, or nobody who reads it, is lost, and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.colours = stream.isatty()

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def set_up(form: LogFormat, level: LogLevel) -> None:
    """All logging of the process, ours and that of libraries, to standard error in one form."""
    stream = _Unfailing(sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
        if form is LogFormat.JSON
        else [structlog.dev.ConsoleRenderer(colors=stream.colours, sort_keys=False)]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # What libraries say when all goes well is of no use to an operator.
    root.setLevel(max(number, logging.WARNING) if number > logging.DEBUG else number)


def _json(value: object, **_: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


class EventLogger:
    """Logs every turn's records, and what the engine tells those who watch it."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self.leader: Leader | None = None  #: as a standby last heard
        self.decided = asyncio.Event()  #: set once it is known who leads
        self._failing = False

    def observe(self, turn: Turn) -> None:
        for record in turn.records():
            method = (
                self._log.debug
                if isinstance(record, _ROUTINE)
                else self._log.warning
                if isinstance(record, _ALARMING)
                else self._log.info
            )
            words, fields = line_of(record)
            method(words, **fields)

    def leading(self, term: int, cluster: Cluster) -> None:
        self.leader, self._failing = None, False
        self.decided.set()
        self._log.info("leading", term=term, jobs=len(cluster.gangs), workers=len(cluster.nodes))

    def standing_by(self, leader: Leader | None) -> None:
        if leader is not None and leader != self.leader:
            self._log.info("standing by", leader=leader.holder, url=leader.url, term=leader.term)
        self.leader, self._failing = leader, False
        self.decided.set()

    def stepped_down(self, term: int, reason: str) -> None:
        self._log.warning("stepped down", term=term, why=reason)

    def store_failed(self, error: str) -> None:
        if not self._failing:
            self._log.warning("store failed", why=error)
        self._failing = True

    def committed(self, seconds: float, commands: int, changes: int) -> None:
        self._failing = False
        if seconds > 1:
            self._log.warning("commit was slow", seconds=round(seconds, 3), commands=commands)

    def planned(self, seconds: float, plan: Plan) -> None:
        pass

    def rejected(self, cause: str) -> None:
        self._log.debug("decision rejected", cause=cause)

    def braked(self) -> None:
        self._log.error(
            "many workers lost at once",
            cure="nothing is drained for them for a while; look at the network",
        )

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        pass


def line_of(record: Record) -> tuple[str, Fields]:
    """The words and the keys of a record's line."""
    match record:
        case GangStopping():
            trigger = record.task
            return "gang drain started", {
                "gang_id": record.job,
                "trigger_job_id": None if trigger is None else f"{record.job}.{trigger}",
                "preemption_epoch": record.attempt,
                "transitioned": record.stopping,
                "why": record.why,
            }
        case TaskStopped():
            return "job preempted", {
                "job_id": f"{record.job}.{record.task}",
                "preemption_epoch": record.attempt,
                "worker": record.worker,
            }
        case GangStopped():
            requeued = record.outcome is Phase.PENDING
            return "gang drain completed", {
                "gang_id": record.job,
                "preemption_epoch": record.attempt,
                "outcome": "blocked" if requeued else record.outcome,
                "seconds": record.seconds,
            }
        case GangReserved():
            return "gang reserved", {
                "gang_id": record.job,
                "gang_size": record.size,
                "epoch": record.attempt,
                "workers": record.workers,
            }
        case _:
            fields: Fields = msgspec.to_builtins(record)
            del fields["seq"], fields["at"]
            return _words(fields.pop("kind")), fields


def _words(kind: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind).lower()
