"""The reports for the server: the latest on each attempt, repeated until it is acknowledged.

A report describes the present state, so a newer one replaces an older one.
"""

import asyncio

from msgspec.structs import replace

from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.wire.sync import Reported, TaskReport

#: Reports that come within this time are sent together.
_COALESCE_S = 0.005


class TaskReports:
    def __init__(self) -> None:
        self.ready = asyncio.Event()  #: there are reports to send
        self._latest: dict[AttemptKey, TaskReport] = {}
        self._unacknowledged: dict[AttemptKey, TaskReport] = {}
        self._is_timer_set = False

    @property
    def is_empty(self) -> bool:
        return not self._latest

    def put(self, report: TaskReport) -> None:
        """Send the report within a few milliseconds, together with others."""
        self._store(report)
        self._set_timer()

    def put_now(self, report: TaskReport) -> None:
        """Send the report at once, with those that wait."""
        self._store(report)
        self.ready.set()

    def _store(self, report: TaskReport) -> None:
        key = (report.id, report.epoch)
        self._latest[key] = self._unacknowledged[key] = report

    def add_progress(self, key: AttemptKey, step: int | None, *, safe: bool) -> None:
        """Send the progress of an attempt, if it was reported as running."""
        latest = self._latest.get(key)
        if latest is None or latest.state is not Reported.RUNNING:
            return
        unsent = self._unacknowledged.get(key)
        if unsent is not None:
            step = unsent.step if step is None else step
            safe = safe or unsent.safe
        self._unacknowledged[key] = TaskReport(*key, Reported.RUNNING, step=step, safe=safe)
        self._set_timer()

    def remove(self, key: AttemptKey) -> None:
        self._latest.pop(key, None)
        self._unacknowledged.pop(key, None)

    def to_send(self, *, full: bool) -> tuple[TaskReport, ...]:
        """The reports for the next sync: on every attempt, or those not acknowledged yet."""
        reports = self._latest | self._unacknowledged if full else self._unacknowledged
        return tuple(reports.values())

    def acknowledge(self, sent: tuple[TaskReport, ...]) -> None:
        for report in sent:
            key = (report.id, report.epoch)
            if self._unacknowledged.get(key) is report:
                del self._unacknowledged[key]

    def _set_timer(self) -> None:
        if not self._is_timer_set:
            self._is_timer_set = True
            asyncio.get_running_loop().call_later(_COALESCE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._is_timer_set = False
        self.ready.set()


def report_of(status: AttemptStatus) -> TaskReport | None:
    """The report on an attempt, or None before its program has been started."""
    if status.gone:
        return TaskReport(*status.key, Reported.GONE)
    if status.start_error is not None:
        return TaskReport(*status.key, Reported.SPAWN_FAILED, message=status.start_error)
    if status.has_ended:
        ended = TaskReport(*status.key, Reported.EXITED, signalled=status.signalled)
        return replace(
            ended,
            exit_code=status.exit_code,
            signal=status.signal,
            memory_used=status.memory_used,
            message=status.note,
        )
    return TaskReport(*status.key, Reported.RUNNING) if status.started else None
