"""Gangs that stay bound in part: after a time their bound pods are evicted, so that nothing is held
by a gang that cannot start."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.writes.calls import PodReference, TimeOutRound, timed_out_rounds
from phalanx.kube.writes.event_writer import EventWriter
from phalanx.kube.writes.evictor import Evictor, EvictResult
from phalanx.kube.writes.open_calls import OpenCalls

#: An eviction that failed, or that the watch has not shown, is sent again after this time.
RESEND_S = 10.0


class RoundsExpiry:
    def __init__(
        self,
        model: ClusterModel,
        evictor: Evictor,
        calls: OpenCalls,
        events: EventWriter,
        timeout_s: float,
    ) -> None:
        self.results: Counter[str] = Counter()
        self._model = model
        self._evictor = evictor
        self._calls = calls
        self._events = events
        self._timeout_s = timeout_s
        #: By uid: until when the pod is not evicted again.
        self._sent: dict[str, float] = {}
        #: Gangs of which an event says that they are not evicted.
        self._kept: set[str] = set()

    def check(self) -> None:
        """Evict the bound pods of all rounds that were not completed in time."""
        now = time.monotonic()
        self._sent = {uid: until for uid, until in self._sent.items() if until > now}
        timeout = timedelta(seconds=self._timeout_s)
        overdue = list(timed_out_rounds(self._model, datetime.now(UTC), timeout))
        self._kept &= {each.gang for each in overdue}
        for each in overdue:
            self._end(each)

    def _end(self, call: TimeOutRound) -> None:
        gang = self._model.gangs.gangs[call.gang]
        message = f"gang {gang.name} was bound in part for {self._timeout_s:.0f} s"
        if call.kept and call.gang not in self._kept:
            self._kept.add(call.gang)
            for pod in call.kept:
                note = f"{message}; not evicted, because no controller would replace the pod"
                self._events.warn(pod.target, "GangTimedOut", note)
        for pod in call.evicted:
            if pod.uid not in self._sent:
                self._sent[pod.uid] = float("inf")
                self._calls.send(self._evict(pod, message))

    async def _evict(self, pod: PodReference, message: str) -> None:
        result = await self._evictor.evict(pod, "GangTimedOut", message)
        self._sent[pod.uid] = time.monotonic() + RESEND_S
        self.results[result] += 1
        if result is EvictResult.EVICTED:
            self._events.warn(pod.target, "GangTimedOut", message)
