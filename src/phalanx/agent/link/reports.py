"""The reports for the server: the latest on each attempt, repeated until it is acknowledged.

A report describes the present state, so a newer one replaces an older one.
"""

import asyncio

from msgspec.structs import replace

from phalanx.agent.messages import AttemptKey, AttemptStatus
from phalanx.wire.sync import Reported, TaskProgress, TaskReport

#: Reports that come within this time are sent together.
_COALESCE_S = 0.005
#: The number of problems that are reported of one attempt.
_PROBLEMS_PER_ATTEMPT = 5
_BEFORE_THE_END = (Reported.PREPARING, Reported.ACCEPTED, Reported.RUNNING)


class TaskReports:
    def __init__(self) -> None:
        self.ready = asyncio.Event()  #: there are reports to send
        self._latest: dict[AttemptKey, TaskReport] = {}
        self._unacknowledged: dict[AttemptKey, TaskReport] = {}
        self._problems: dict[AttemptKey, list[str]] = {}
        self._unsent_problems: dict[AttemptKey, str] = {}
        self._is_timer_set = False
        self._has_new = False  #: since the last sync
        #: The call that the server holds: it ends as soon as there are reports to send.
        self._held_call: asyncio.Timeout | None = None

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
        self.announce()

    def _store(self, report: TaskReport) -> None:
        key = (report.id, report.epoch)
        self._latest[key] = report
        unsent = self._unacknowledged.get(key)
        if unsent is not None and unsent.progress is not None:
            report = replace(report, progress=unsent.progress)
        self._unacknowledged[key] = report

    def add_progress(self, key: AttemptKey, progress: TaskProgress) -> None:
        """Send the progress of an attempt, unless its end was reported."""
        latest = self._latest.get(key)
        if latest is not None and latest.state not in _BEFORE_THE_END:
            return
        unsent = self._unacknowledged.get(key)
        if unsent is not None and unsent.progress is not None:
            progress = progress.after(unsent.progress)
        self._unacknowledged[key] = TaskReport(*key, Reported.RUNNING, progress=progress)
        self._set_timer()

    def add_problem(self, key: AttemptKey, message: str) -> bool:
        """Send a problem with the next report on the attempt, which is sent again if need be.

        False if the problem is not sent: it was reported before, or many others were.
        """
        problems = self._problems.setdefault(key, [])
        if message in problems or len(problems) >= _PROBLEMS_PER_ATTEMPT:
            return False
        problems.append(message)
        earlier = self._unsent_problems.get(key)
        self._unsent_problems[key] = message if earlier is None else f"{earlier}; {message}"
        latest = self._latest.get(key)
        if latest is not None:
            self._unacknowledged.setdefault(key, latest)
            self._set_timer()
        return True

    def remove(self, key: AttemptKey) -> None:
        self._latest.pop(key, None)
        self._unacknowledged.pop(key, None)
        self._problems.pop(key, None)
        self._unsent_problems.pop(key, None)

    def to_send(self, *, full: bool) -> tuple[TaskReport, ...]:
        """The reports for the next sync: on every attempt, or those not acknowledged yet."""
        self.ready.clear()
        self._has_new = False
        for key in self._unsent_problems.keys() & self._unacknowledged.keys():
            report, problem = self._unacknowledged[key], self._unsent_problems[key]
            self._unacknowledged[key] = replace(report, problem=problem)
        reports = self._latest | self._unacknowledged if full else self._unacknowledged
        return tuple(reports.values())

    def acknowledge(self, sent: tuple[TaskReport, ...]) -> None:
        for report in sent:
            key = (report.id, report.epoch)
            if self._unsent_problems.get(key) == report.problem:
                del self._unsent_problems[key]
            if self._unacknowledged.get(key) is report:
                del self._unacknowledged[key]

    def hold(self) -> asyncio.Timeout:
        """A timeout for a call, which ends as soon as there are reports to send. `release` has to
        be called after it."""
        self._held_call = asyncio.timeout(None)
        return self._held_call

    def release(self) -> None:
        self._held_call = None

    def _set_timer(self) -> None:
        self._has_new = True
        if not self._is_timer_set:
            self._is_timer_set = True
            asyncio.get_running_loop().call_later(_COALESCE_S, self._on_timer)

    def _on_timer(self) -> None:
        self._is_timer_set = False
        if self._has_new:
            self.announce()

    def announce(self) -> None:
        """Have the link make its next call to the server now."""
        self.ready.set()
        if self._held_call is not None:
            self._held_call.reschedule(asyncio.get_running_loop().time())
            self._held_call = None


def report_of(status: AttemptStatus) -> TaskReport | None:
    """The report on an attempt, or None before it was prepared."""
    if status.gone:
        return TaskReport(*status.key, Reported.GONE)
    if status.start_error is not None:
        reported = Reported.START_REFUSED if status.start_refused else Reported.SPAWN_FAILED
        return TaskReport(*status.key, reported, message=status.start_error)
    if status.has_ended:
        ended = TaskReport(*status.key, Reported.EXITED, signalled=status.signalled)
        return replace(
            ended,
            exit_code=status.exit_code,
            signal=status.signal,
            memory_used=status.memory_used,
            message=status.note,
            output_bytes=status.output_bytes,
        )
    if status.started:
        return TaskReport(*status.key, Reported.RUNNING)
    return TaskReport(*status.key, Reported.ACCEPTED) if status.prepared else None
