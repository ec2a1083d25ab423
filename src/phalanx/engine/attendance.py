"""Who has been heard and who has not, and the brake that keeps a bad day from draining everything.

Deadlines are kept in attended time, which stands still while we ourselves did not listen: a stall
of the loop or of a commit is no worker's fault.
"""

import heapq
from collections import deque

from phalanx.engine.settings import EngineSettings


class Attendance:
    def __init__(self, settings: EngineSettings, now_s: float) -> None:
        self._settings = settings
        self._stalled_s = 0.0
        self._heard: dict[str, float] = {}
        #: (deadline, worker); an entry that has been overtaken is put back when it comes up.
        self._deadlines: list[tuple[float, str]] = []
        self._lost: deque[float] = deque()
        self._braked_until_s = now_s
        self.is_braked = False

    def attended(self, now_s: float) -> float:
        return now_s - self._stalled_s

    def stalled(self, seconds: float) -> None:
        self._stalled_s += seconds

    def hear(self, worker: str, now_s: float) -> None:
        heard = self.attended(now_s)
        if worker not in self._heard:
            heapq.heappush(self._deadlines, (heard + self._settings.lost_after_s, worker))
        self._heard[worker] = heard

    def forget(self, worker: str) -> None:
        self._heard.pop(worker, None)

    def next_deadline(self) -> float | None:
        """On the loop's clock, as far as stalls are known by now."""
        return self._deadlines[0][0] + self._stalled_s if self._deadlines else None

    def take_lost(self, now_s: float) -> list[str]:
        """The workers whose silence is too long now. They are forgotten until heard again."""
        attended = self.attended(now_s)
        silent = []
        while self._deadlines and self._deadlines[0][0] <= attended:
            _, worker = heapq.heappop(self._deadlines)
            heard = self._heard.get(worker)
            if heard is None:
                continue
            deadline = heard + self._settings.lost_after_s
            if deadline > attended:
                heapq.heappush(self._deadlines, (deadline, worker))
            else:
                silent.append(worker)
        lost = self._unless_braked(silent, now_s)
        for worker in silent:
            if worker in lost:
                del self._heard[worker]
            else:
                # Looked at again when the brake is let go.
                heapq.heappush(self._deadlines, (self.attended(self._braked_until_s), worker))
        return lost

    def _unless_braked(self, silent: list[str], now_s: float) -> list[str]:
        settings = self._settings
        if self.is_braked and now_s >= self._braked_until_s:
            self.release_brake()
            return silent
        while self._lost and self._lost[0] < now_s - settings.brake_window_s:
            self._lost.popleft()
        known = len(self._heard) + len(self._lost)
        many = len(silent) + len(self._lost)
        if many > settings.brake_count and many > settings.brake_share * known:
            if not self.is_braked:
                self.is_braked = True
                self._braked_until_s = now_s + settings.brake_hold_s
            return []
        self._lost.extend([now_s] * len(silent))
        return silent

    def release_brake(self) -> None:
        """What is still silent is lost; an operator, or time, says so."""
        self.is_braked = False
        self._lost.clear()
