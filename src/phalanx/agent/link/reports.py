"""What the server has still to be told: how each attempt stands, repeated until it was heard.

Level-triggered: a report says how things are, and a newer one takes the place of an older.
"""

from msgspec.structs import replace

from phalanx.agent.link.progress import ProgressReport
from phalanx.agent.messages import Key, Life
from phalanx.wire.sync import Reported, TaskReport


class UnsentReports:
    def __init__(self) -> None:
        self._all: dict[Key, TaskReport] = {}
        self._unheard: dict[Key, TaskReport] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._all

    def get(self, key: Key) -> TaskReport | None:
        return self._all.get(key)

    def put(self, report: TaskReport) -> None:
        key = (report.id, report.epoch)
        self._all[key] = self._unheard[key] = report

    def progressed(self, key: Key, progress: ProgressReport) -> None:
        unheard = self._unheard.get(key)
        if key not in self._all or self._all[key].state is not Reported.RUNNING:
            return
        step = progress.step
        if step is None and unheard is not None:
            step = unheard.step
        safe = progress.safe or (unheard is not None and unheard.safe)
        self._unheard[key] = TaskReport(*key, Reported.RUNNING, step=step, safe=safe)

    def drop(self, key: Key) -> None:
        self._all.pop(key, None)
        self._unheard.pop(key, None)

    def take(self, *, full: bool) -> tuple[TaskReport, ...]:
        """What to say now: all that there is, or what was not heard yet."""
        return tuple((self._all | self._unheard if full else self._unheard).values())

    def heard(self, said: tuple[TaskReport, ...]) -> None:
        for report in said:
            key = (report.id, report.epoch)
            if self._unheard.get(key) is report:
                del self._unheard[key]

    @property
    def is_quiet(self) -> bool:
        return not self._unheard

    @property
    def is_empty(self) -> bool:
        return not self._all


def report_of(life: Life) -> TaskReport | None:
    """None for one that has been forked and does not run yet: that is known in a moment."""
    if life.gone:
        return TaskReport(*life.key, Reported.GONE)
    if life.failure is not None:
        return TaskReport(*life.key, Reported.SPAWN_FAILED, message=life.failure)
    if life.is_over:
        ended = TaskReport(*life.key, Reported.EXITED, signalled=life.signalled)
        return replace(ended, exit_code=life.exit_code, signal=life.signal)
    return TaskReport(*life.key, Reported.RUNNING) if life.begun else None
