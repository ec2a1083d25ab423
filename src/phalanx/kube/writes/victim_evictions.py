"""Preemptions in progress: victims are marked, asked for a checkpoint if they wish, and evicted.

Marks and nominations are written to the pods before the first eviction, and every further step
follows from what the pods show, so that a scheduler that starts in between goes on where the last
one ended.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import structlog

from phalanx.core.node import DEVICE, GPU
from phalanx.core.text import plural
from phalanx.core.time_units import SECOND
from phalanx.kube.gangs.gang import GangMember, KubeGang, MemberState
from phalanx.kube.gangs.gang_translation import (
    PREEMPTED_BY,
    bound_priority,
    is_victim,
    keeps_minimum,
    safe_at,
)
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.metadata import time_text
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.calls import Bind, ClearNomination, Preempt, reference
from phalanx.kube.writes.checkpoints import (
    CHECKPOINTED,
    PREEMPT_AT,
    checkpoint_wish,
    has_answered,
    ready_to_stop,
)
from phalanx.kube.writes.event_writer import EventWriter
from phalanx.kube.writes.evictor import Evictor, EvictResult
from phalanx.kube.writes.open_calls import OpenCalls

#: A call that the watch has not shown to be done is sent again after this time.
RESEND_S = 10.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class VictimEvictions:
    def __init__(
        self,
        model: ClusterModel,
        evictor: Evictor,
        calls: OpenCalls,
        events: EventWriter,
        checkpoint_wait_s: float,
    ) -> None:
        self.results: Counter[str] = Counter()
        self.lost_gpu_seconds = 0.0
        self._model = model
        self._evictor = evictor
        self._calls = calls
        self._events = events
        self._checkpoint_wait = timedelta(seconds=checkpoint_wait_s)
        #: The preemption whose marks are being written or not shown yet. The next one waits.
        self._marking: Preempt | None = None
        self._are_all_marked = False
        #: By uid: until when nothing else is sent about the pod.
        self._sent: dict[str, float] = {}
        #: The uids of evicted pods that the watch does not show as such yet.
        self._evicted: set[str] = set()

    # Decisions of a plan

    def begin(self, call: Preempt) -> None:
        """Mark the victims of a preemption, unless another one is being marked. Without victims,
        nominate nodes for the pods that have none: their places are becoming free."""
        if not call.victims:
            self._nominate(call.nominations)
        elif self._marking is None:
            self._marking, self._are_all_marked = call, False
            self._calls.send(self._mark(call))

    def clear(self, call: ClearNomination) -> None:
        """Nominate no nodes any more for pods whose victims are gone."""
        for pod in call.pods:
            if self._may_send(pod.uid):
                self._calls.send(self._evictor.clear_nomination(pod))

    def _nominate(self, nominations: Iterable[Bind]) -> None:
        for each in nominations:
            pod = self._model.pods.pods.get(each.pod.uid)
            is_new = pod is not None and not pod.status.nominated_node_name
            if is_new and self._may_send(each.pod.uid):
                self._calls.send(self._evictor.nominate(each))

    async def _mark(self, call: Preempt) -> None:
        """Write nominations, then all marks. If a mark cannot be written, none is kept."""
        log.info("preempting", preemptor=call.preemptor, victims=len(call.victims))
        await asyncio.gather(*(self._evictor.nominate(each) for each in call.nominations))
        deadline = time_text(datetime.now(UTC) + self._checkpoint_wait)
        asked = {PREEMPT_AT: deadline, CHECKPOINTED: None}
        marked = await asyncio.gather(
            *(
                self._evictor.annotate(
                    each.pod,
                    {PREEMPTED_BY: each.preemptor} | (asked if each.wants_checkpoint else {}),
                )
                for each in call.victims
            )
        )
        if all(marked):
            self._are_all_marked = True
            return
        log.warning("preemption given up: a victim could not be marked", preemptor=call.preemptor)
        for each in call.victims:
            await self._evictor.annotate(each.pod, _WITHOUT_MARK)
        self._marking = None

    # What the pods show

    def advance(self) -> None:
        """Take the next step for every victim."""
        self._forget_answered()
        if self._marking is not None and self._is_shown(self._marking):
            self._note_preempted_gangs(self._marking)
            self._marking = None
        for preemptor, victims in self._model.victims().items():
            if self._marking is not None and self._marking.preemptor == preemptor:
                continue
            left = [pod for pod in victims if not pod.is_terminating]
            needed = [pod for pod in left if self._is_needed(preemptor, pod.metadata.uid)]
            self._unmark(pod for pod in left if pod not in needed)
            if needed:
                self._evict_ready(preemptor, needed)

    def _forget_answered(self) -> None:
        now = time.monotonic()
        pods = self._model.pods.pods
        self._sent = {
            uid: until
            for uid, until in self._sent.items()
            if until > now and uid in pods and not pods[uid].is_terminating
        }
        self._evicted = {
            uid for uid in self._evicted if uid in pods and not pods[uid].is_terminating
        }

    def _may_send(self, uid: str) -> bool:
        """Whether nothing was sent about the pod a moment ago; the caller sends something now."""
        is_free = uid not in self._sent
        self._sent.setdefault(uid, time.monotonic() + RESEND_S)
        return is_free

    def _is_shown(self, call: Preempt) -> bool:
        """Whether the watch shows all victims as marked or gone."""
        pods = (self._model.pods.pods.get(victim.pod.uid) for victim in call.victims)
        return self._are_all_marked and all(
            pod is None or pod.is_terminating or is_victim(pod) for pod in pods
        )

    def _is_needed(self, preemptor: str, uid: str) -> bool:
        """Whether the preemptor is still pending, or the victim's gang has lost so many pods that
        the rest of it cannot go on. A gang that a dead scheduler has marked in part is not
        evicted: its pods can only go together, and the next plan decides again."""
        gang = self._model.gangs.gang_of(uid)
        if gang is None:
            return any(True for _ in self._pending(preemptor))
        staying = [each for each in gang.bound if each.pod.metadata.uid not in self._evicted]
        has_begun = len(staying) < len(gang.bound) or any(
            is_victim(each.pod) for each in gang.of(MemberState.LEAVING)
        )
        is_broken = has_begun if gang.terms.is_whole_unit else not keeps_minimum(gang, staying)
        if not has_begun and _is_marked_in_part(gang, staying):
            return False
        return is_broken or any(True for _ in self._pending(preemptor))

    def _unmark(self, pods: Iterable[KubePod]) -> None:
        for pod in pods:
            if self._may_send(pod.metadata.uid):
                self._calls.send(self._remove_mark(pod))

    async def _remove_mark(self, pod: KubePod) -> None:
        await self._evictor.annotate(reference(pod), _WITHOUT_MARK)

    def _evict_ready(self, preemptor: str, victims: list[KubePod]) -> None:
        """Evict the pods that have saved their work or have none to save; pods with budgets first,
        because only their evictions may have to wait."""
        ready = [pod for pods in self._by_gang(victims) for pod in ready_to_stop(pods, _now())]
        with_budget = [pod for pod in victims if self._model.budgets.of(pod)]
        first = {pod.metadata.uid for pod in with_budget or victims}
        for pod in ready:
            if pod.metadata.uid in first and self._may_send(pod.metadata.uid):
                self._calls.send(self._evict(preemptor, pod))

    def _by_gang(self, pods: Iterable[KubePod]) -> Iterator[list[KubePod]]:
        by_gang: dict[str, list[KubePod]] = {}
        for pod in pods:
            gang = self._model.gangs.gang_of(pod.metadata.uid)
            by_gang.setdefault("" if gang is None else gang.job, []).append(pod)
        return iter(by_gang.values())

    async def _evict(self, preemptor: str, pod: KubePod) -> None:
        uid, message = pod.metadata.uid, self._text(preemptor, pod)
        lost = self._lost(pod)
        self._sent[uid] = float("inf")  # the evictor tries again by itself
        result = await self._evictor.evict(
            reference(pod),
            "PreemptionByScheduler",
            message,
            lambda: self._is_needed(preemptor, uid),
        )
        self._sent[uid] = time.monotonic() + RESEND_S
        self.results[result] += 1
        if result is EvictResult.EVICTED:
            self._evicted.add(uid)
            self.lost_gpu_seconds += lost
            cost = f"; this pod lost {_gpu_seconds(lost)} of work" if lost >= 1 else ""
            self._events.warn(reference(pod).target, "Preempted", message + cost)

    def _lost(self, pod: KubePod) -> float:
        """GPU-seconds of work that the pod loses if it is evicted now."""
        gpus = dict(self._model.pods.request(pod.metadata.uid).resources).get(GPU, 0) / DEVICE
        lost_s = 0.0 if has_answered(pod) else _now().timestamp() - safe_at(pod) / SECOND
        return gpus * max(0.0, lost_s)

    def _text(self, preemptor: str, pod: KubePod) -> str:
        """Why a pod is evicted, in the words of its condition and its event."""
        gangs = self._model.gangs
        priorities = [gangs.gangs[job].priority for job in gangs.named(preemptor)]
        victim = gangs.gang_of(pod.metadata.uid)
        own = bound_priority(pod, None if victim is None else victim.group_priority)
        if priorities and min(priorities) > own:
            return f"preempted by higher-priority gang {preemptor}"
        return f"evicted for gang {preemptor}, whose queue reclaims its share"

    def _pending(self, preemptor: str) -> Iterator[KubeGang]:
        gangs = self._model.gangs
        return (gangs.gangs[job] for job in gangs.named(preemptor) if gangs.gangs[job].pending)

    def _note_preempted_gangs(self, call: Preempt) -> None:
        """Write one event per preempted gang to its PodGroup."""
        gangs = self._model.gangs
        evicted: dict[str, list[KubePod]] = {}
        for each in call.victims:
            gang, pod = gangs.gang_of(each.pod.uid), self._model.pods.pods.get(each.pod.uid)
            if gang is not None and pod is not None:
                evicted.setdefault(gang.job, []).append(pod)
        for job, pods in evicted.items():
            target = gangs.group_target(gangs.gangs[job])
            if target is not None:
                message = f"evicting {plural(len(pods), 'pod')}:"
                message += f" {self._text(call.preemptor, pods[0])}"
                lost = sum(map(self._lost, pods))
                if lost >= 1 and checkpoint_wish(pods) is None:
                    message += f"; the gang loses {_gpu_seconds(lost)} of work"
                self._events.warn(target, "Preempted", message)


_WITHOUT_MARK: dict[str, str | None] = {PREEMPTED_BY: None, PREEMPT_AT: None}


def _is_marked_in_part(gang: KubeGang, bound: Sequence[GangMember]) -> bool:
    """Whether the pods without a mark would be too few to go on."""
    rest = [each for each in bound if not is_victim(each.pod)]
    return bool(rest) and (gang.terms.is_whole_unit or not keeps_minimum(gang, rest))


def _gpu_seconds(amount: float) -> str:
    return plural(round(amount), "GPU-second")


def _now() -> datetime:
    return datetime.now(UTC)
