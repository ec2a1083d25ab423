"""Deadlines for workers that report regularly, and the loss brake.

Deadlines are kept in listening time, which excludes the server's own pauses: a worker cannot be
heard while the event loop or a commit is blocked. When many workers fall silent at once, the
network or the server is the likelier cause; the brake then postpones every loss.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable

from phalanx.engine.settings import EngineSettings


def _is_expected(worker: str) -> bool:
    return True


class Liveness:
    def __init__(self, settings: EngineSettings, now_s: float) -> None:
        self._settings = settings
        self._paused_s = 0.0
        #: worker → when it was last heard, in listening time.
        self._heard: dict[str, float] = {}
        #: (deadline, worker); the deadline of a worker heard since is renewed when it comes up.
        self._deadlines: list[tuple[float, str]] = []
        #: When each unexpected loss of the last `brake_window_s` was declared.
        self._losses: deque[float] = deque()
        self._braked_until_s = now_s
        self.is_braked = False
        #: Silent workers that the brake holds back, and those it has released since.
        self._held_back: list[str] = []
        self._released: list[str] = []

    def add_pause(self, seconds: float) -> None:
        """Extend every deadline by a time in which the server did not listen."""
        self._paused_s += seconds

    def hear(self, worker: str, now_s: float) -> bool:
        """Renew the worker's deadline; True if it had none before."""
        heard = self._listening_time(now_s)
        is_new = worker not in self._heard
        if is_new:
            heapq.heappush(self._deadlines, (heard + self._settings.lost_after_s, worker))
        self._heard[worker] = heard
        return is_new

    def forget(self, worker: str) -> None:
        """Drop a worker that was removed: it has no deadline any more."""
        self._heard.pop(worker, None)

    def next_deadline(self) -> float | None:
        """When `take_lost` has something to do, on the loop's clock."""
        due = [self._deadlines[0][0] + self._paused_s] if self._deadlines else []
        if self.is_braked:
            due.append(self._braked_until_s)
        return min(due, default=None)

    def take_lost(
        self, now_s: float, is_expected: Callable[[str], bool] = _is_expected
    ) -> list[str]:
        """The workers to declare lost now. Each is dropped until it is heard again.

        A worker that is not expected to report any more, because it is leaving, is declared lost
        on time and does not count towards the brake.
        """
        next_s = self.next_deadline()
        if not self._released and (next_s is None or now_s < next_s):
            return []  # as in almost every turn
        if self.is_braked and now_s >= self._braked_until_s:
            self.release_brake()
        lost = self._still_silent(self._released, now_s)
        self._released = []
        silent = self._still_silent(self._take_due(now_s), now_s)
        surprising = [worker for worker in silent if is_expected(worker)]
        lost += [worker for worker in silent if not is_expected(worker)]
        if self.is_braked or self._are_many(len(surprising), now_s):
            self._brake(surprising, now_s)
        else:
            self._losses.extend([now_s] * len(surprising))
            lost += surprising
        for worker in lost:
            del self._heard[worker]
        return lost

    def release_brake(self) -> None:
        """Let `take_lost` return the workers held back that are still silent."""
        self.is_braked = False
        self._losses.clear()
        self._released, self._held_back = self._held_back, []

    def _listening_time(self, now_s: float) -> float:
        return now_s - self._paused_s

    def _take_due(self, now_s: float) -> list[str]:
        due = []
        while self._deadlines and self._deadlines[0][0] <= self._listening_time(now_s):
            due.append(heapq.heappop(self._deadlines)[1])
        return due

    def _still_silent(self, workers: Iterable[str], now_s: float) -> list[str]:
        """Those not heard since their deadline was set; the others get a new deadline."""
        silent = []
        for worker in workers:
            heard = self._heard.get(worker)
            if heard is None:
                continue
            deadline = heard + self._settings.lost_after_s
            if deadline <= self._listening_time(now_s):
                silent.append(worker)
            else:
                heapq.heappush(self._deadlines, (deadline, worker))
        return silent

    def _are_many(self, silent: int, now_s: float) -> bool:
        """Whether so many losses at once point to the network or to this server."""
        settings = self._settings
        while self._losses and self._losses[0] < now_s - settings.brake_window_s:
            self._losses.popleft()
        lost = silent + len(self._losses)
        total = len(self._heard) + len(self._losses)
        return silent > 0 and lost > max(settings.brake_count, settings.brake_share * total)

    def _brake(self, silent: list[str], now_s: float) -> None:
        if not self.is_braked:
            self.is_braked = True
            self._braked_until_s = now_s + self._settings.brake_duration_s
        self._held_back += silent
