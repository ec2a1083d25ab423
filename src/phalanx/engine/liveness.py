"""Who has been heard and who has not, and the brake that keeps a bad day from draining everything.

Deadlines are kept in attended time, which stands still while we ourselves did not listen: a stall
of the loop or of a commit is no worker's fault.
"""

import heapq
from collections import deque
from collections.abc import Iterable

from phalanx.engine.settings import EngineSettings


class Liveness:
    def __init__(self, settings: EngineSettings, now_s: float) -> None:
        self._settings = settings
        self._stalled_s = 0.0
        self._heard: dict[str, float] = {}
        #: (deadline, worker); an entry that has been overtaken is put back when it comes up.
        self._deadlines: list[tuple[float, str]] = []
        self._lost: deque[float] = deque()
        self._braked_until_s = now_s
        self.is_braked = False
        #: Silent for too long, but kept by the brake; and those that it has let go.
        self._held_back: list[str] = []
        self._given_up: list[str] = []

    def attended(self, now_s: float) -> float:
        return now_s - self._stalled_s

    def stalled(self, seconds: float) -> None:
        self._stalled_s += seconds

    def hear(self, worker: str, now_s: float) -> bool:
        """Whether it is new, so that there is a deadline that nobody waits for yet."""
        heard = self.attended(now_s)
        is_new = worker not in self._heard
        if is_new:
            heapq.heappush(self._deadlines, (heard + self._settings.lost_after_s, worker))
        self._heard[worker] = heard
        return is_new

    def forget(self, worker: str) -> None:
        self._heard.pop(worker, None)

    def next_deadline(self) -> float | None:
        """On the loop's clock, as far as stalls are known by now."""
        due = [self._deadlines[0][0] + self._stalled_s] if self._deadlines else []
        if self.is_braked:
            due.append(self._braked_until_s)
        return min(due, default=None)

    def take_lost(self, now_s: float) -> list[str]:
        """The workers whose silence is too long now. They are forgotten until heard again."""
        if self.is_braked and now_s >= self._braked_until_s:
            self.release_brake()
        lost = self._take_silent(self._given_up, now_s)
        self._given_up = []
        silent = self._take_silent(self._take_due(now_s), now_s)
        if self.is_braked or self._are_many(len(silent), now_s):
            self._brake(silent, now_s)
        else:
            self._lost.extend([now_s] * len(silent))
            lost += silent
        for worker in lost:
            del self._heard[worker]
        return lost

    def _take_due(self, now_s: float) -> list[str]:
        due = []
        while self._deadlines and self._deadlines[0][0] <= self.attended(now_s):
            due.append(heapq.heappop(self._deadlines)[1])
        return due

    def _take_silent(self, workers: Iterable[str], now_s: float) -> list[str]:
        """Those that have not been heard since; the others get their new deadline."""
        silent = []
        for worker in workers:
            heard = self._heard.get(worker)
            if heard is None:
                continue
            deadline = heard + self._settings.lost_after_s
            if deadline <= self.attended(now_s):
                silent.append(worker)
            else:
                heapq.heappush(self._deadlines, (deadline, worker))
        return silent

    def _are_many(self, silent: int, now_s: float) -> bool:
        """Whether so many are lost at once that it is more likely us, or the network."""
        settings = self._settings
        while self._lost and self._lost[0] < now_s - settings.brake_window_s:
            self._lost.popleft()
        many = silent + len(self._lost)
        known = len(self._heard) + len(self._lost)
        return silent > 0 and many > max(settings.brake_count, settings.brake_share * known)

    def _brake(self, silent: list[str], now_s: float) -> None:
        if not self.is_braked:
            self.is_braked = True
            self._braked_until_s = now_s + self._settings.brake_hold_s
        self._held_back += silent

    def release_brake(self) -> None:
        """Those that are still silent are lost; time, or an operator, says so."""
        self.is_braked = False
        self._lost.clear()
        self._given_up, self._held_back = self._held_back, []
