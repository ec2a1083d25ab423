"""Watches one value of one task for the rules of its job: which values are abnormal, and which of
those are reported.
"""

import math
from bisect import bisect_left, insort
from collections import deque

from phalanx.core.events import AbnormalValue
from phalanx.core.spec.watch import LEAST_HISTORY, AbnormalKind, ValueRules

#: Alarms of one value in one attempt.
_MOST_ALARMS = 20


class ValueMonitor:
    """A value is `nan` if it is not a finite number. It is a `spike` if its magnitude exceeds
    `factor` times the median magnitude of the last `window` finite values of this task in this
    attempt; at least ten are needed, and after a median of zero nothing is a spike. A spike joins
    the history, so a lasting change of level becomes the new normal. Abnormal values in a row are
    one alarm: the next is raised after ten normal values, or if the kind changes.
    """

    def __init__(self, name: str, rules: ValueRules) -> None:
        self._name = name
        self._rules = rules
        self._recent: deque[float] = deque()  #: magnitudes in the order of arrival
        self._sorted: list[float] = []  #: the same magnitudes
        self._alarms = 0
        self._last_kind: AbnormalKind | None = None
        self._normal = 0  #: normal values since the last abnormal one

    def observe(self, step: int, value: float) -> AbnormalValue | None:
        """Take the next value. The alarm that it raises, if any."""
        median = self._median()
        kind = self._kind(value, median)
        if self._rules.spike is not None and math.isfinite(value):
            self._remember(abs(value), self._rules.spike.window)
        if kind is None:
            self._normal += 1
            return None
        is_new = kind is not self._last_kind or self._normal >= LEAST_HISTORY
        self._last_kind, self._normal = kind, 0
        if not is_new or self._alarms >= _MOST_ALARMS:
            return None
        self._alarms += 1
        if kind is AbnormalKind.NAN:
            return AbnormalValue(self._name, kind, step)
        return AbnormalValue(self._name, kind, step, value, median)

    def _kind(self, value: float, median: float) -> AbnormalKind | None:
        if not math.isfinite(value):
            return None if self._rules.nan is None else AbnormalKind.NAN
        spike = self._rules.spike
        if spike is not None and median > 0 and abs(value) > spike.factor * median:
            return AbnormalKind.SPIKE
        return None

    def _median(self) -> float:
        """The median magnitude; 0 while the history is too short."""
        count = len(self._sorted)
        if count < LEAST_HISTORY:
            return 0.0
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2

    def _remember(self, magnitude: float, window: int) -> None:
        self._recent.append(magnitude)
        insort(self._sorted, magnitude)
        if len(self._recent) > window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
