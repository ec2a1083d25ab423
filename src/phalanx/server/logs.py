"""Log lines of the server, one per event: records, and telemetry of the engine.

Four lines (gang reserved, gang drain started, job preempted, gang drain completed) keep the words
and keys of the plain protocol, so that existing alerts on them work.
"""

import asyncio
import logging
import re
from functools import cache
from typing import Any

import msgspec

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
    TaskProblemReported,
    TaskStarted,
    TaskStopped,
    TaskStopTimedOut,
    WorkerCordoned,
    WorkerDeclaredLost,
    WorkSaved,
    kind_of,
)
from phalanx.engine.turn import Turn
from phalanx.plan.decisions import Plan
from phalanx.server.log_output import Logger
from phalanx.store.protocol import Leader
from phalanx.wire.events import time_fields
from phalanx.wire.times import iso_time

Fields = dict[str, Any]

_ROUTINE = (
    *(TaskStarted, TaskClaimed, TaskDone, GangStarting, AttemptGone, WorkSaved),
    *(TaskCheckpointSaved, DependenciesMet),
)
_ALARMING = (
    *(WorkerDeclaredLost, TaskFailed, TaskStopTimedOut, TaskProblemReported, ReservationLost),
    WorkerCordoned,
)
#: The levels of records that are not logged at level info.
_LEVELS: dict[type[Record], int] = {
    **dict.fromkeys(_ROUTINE, logging.DEBUG),
    **dict.fromkeys(_ALARMING, logging.WARNING),
}


class EventLogger:
    """Logs the records of every turn and the telemetry of the engine."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self.leader: Leader | None = None  #: the leader that this standby knows of
        self.decided = asyncio.Event()  #: set once this server leads or stands by
        self._failing = False  #: the store has failed since its last success

    def observe(self, turn: Turn) -> None:
        for record in turn.records():
            level = _LEVELS.get(type(record), logging.INFO)
            if self._log.is_enabled_for(level):
                event, fields = line_of(record)
                self._log.log(level, event, **fields)

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
            self._log.warning("slow commit", seconds=round(seconds, 3), commands=commands)

    def planned(self, seconds: float, plan: Plan) -> None:
        pass

    def rejected(self, cause: str) -> None:
        self._log.debug("decision rejected", cause=cause)

    def braked(self) -> None:
        self._log.error(
            "many workers lost at once",
            cure="check the network; their tasks are not requeued while losses are paused",
        )

    def timer_refused(self, event: str, error: str) -> None:
        self._log.critical(
            "timer refused", timer=event, error=error, cure="report this as a bug of Phalanx"
        )

    def output_kept(self, size_bytes: int, dropped_bytes: int) -> None:
        pass


def line_of(record: Record) -> tuple[str, Fields]:
    """The event of a record's log line, and its keys."""
    match record:
        case GangReserved():
            return "gang reserved", {
                "gang_id": record.job,
                "gang_size": record.size,
                "attempt": record.attempt,
                "workers": record.workers,
            }
        case GangStopping():
            trigger = None if record.task is None else f"{record.job}.{record.task}"
            return "gang drain started", {
                "gang_id": record.job,
                "trigger_job_id": trigger,
                "preemption_epoch": record.attempt,
                "transitioned": record.stopping + record.failed,
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
        case _:
            fields: Fields = msgspec.to_builtins(record)
            for name in time_fields(type(record)):
                fields[name] = iso_time(fields[name])
            # The line has a time of its own.
            del fields["kind"], fields["seq"], fields["at"]
            return _spaced(kind_of(record)), fields


@cache
def _spaced(kind: str) -> str:
    """`TaskStarted` as `task started`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind).lower()
