"""The scheduler: changes of the cluster become a plan, and the plan becomes calls.

The API server is the only source of truth. One pass runs at a time. Binds and evictions are sent
beside it, and count as done in the model until the watch shows them or they are refused.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from phalanx.core.time_units import SECOND, Micros
from phalanx.host.clock import wall_clock
from phalanx.kube.binder import Binder, BindOutcome, BindResult
from phalanx.kube.calls import (
    BindGang,
    Call,
    Hold,
    PodReference,
    Preempt,
    Release,
    TimeOutGang,
    calls_of,
    reference,
    reports_of,
)
from phalanx.kube.client import ApiClient
from phalanx.kube.cluster_model import ClusterModel
from phalanx.kube.cluster_watch import ClusterWatch
from phalanx.kube.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.evictor import Evictor
from phalanx.kube.gang import KubeGang, MemberState
from phalanx.kube.gang_terms import TIMED_OUT
from phalanx.kube.gang_translation import PREEMPTED_BY
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.reflector import Change
from phalanx.kube.rounds import ROUND, bound_at, incomplete_rounds
from phalanx.kube.status_writer import StatusWriter, record_event
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Plan

#: A pass runs at least this often: for timeouts, and for what no watch reports.
TICK_S = 1.0
#: Reasons and timeouts are looked at this often: they concern every gang, not only changed ones.
REPORT_S = 0.5
#: A plan that is expected to take longer runs in a thread.
_QUICK_S = 0.002
#: The shortest pause between two passes, in which changes gather.
_GATHER_S = 0.002
#: The wait of a gang after a bind of it was refused, or after its timeout.
BACKOFF: Micros = 5 * SECOND
#: How long a gang avoids a node whose kubelet has refused one of its pods.
AVOID_S = 300.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class SchedulerSettings(NamedTuple):
    scheduler_names: tuple[str, ...] = ("phalanx",)
    node_labels: str = ""  #: a label selector: place pods only on these nodes
    #: A gang that is bound in part for longer is evicted.
    gang_timeout_s: float = 60.0


class KubeScheduler:
    def __init__(
        self, client: ApiClient, settings: SchedulerSettings, may_act: Callable[[], bool]
    ) -> None:
        self.model = ClusterModel(settings.scheduler_names)
        self.binds: Counter[BindResult] = Counter()
        self.evictions: Counter[str] = Counter()
        self.passes = 0
        self.foreign_binds = 0
        self.lost_gpu_seconds = 0.0
        self.is_ready = False
        self._client = client
        self._settings = settings
        self._may_act = may_act
        self._changed = asyncio.Event()
        self.watch = ClusterWatch(
            client, self.model, self._changed.set, self._on_pod, settings.node_labels
        )
        self.status = StatusWriter(client, may_act)
        self._binder = Binder(client, may_act)
        self._evictor = Evictor(client, may_act)
        self._calls: set[asyncio.Task[None]] = set()
        #: Results of calls, which are applied between two plans.
        self._results: list[Callable[[], None]] = []
        #: A preemption that the watch does not show yet. The next one waits for it.
        self._preemption: Preempt | None = None
        self._timing_out: set[str] = set()
        self._is_leading = False
        self.plan_s = 0.0  #: duration of the last plan
        self._reported_s = 0.0

    async def run(self) -> None:
        """Schedule until cancelled."""
        writing = asyncio.create_task(self.status.run())
        try:
            await self.watch.start()
            self.is_ready = True
            while True:
                await self._turn()
        finally:
            pending = [writing, *self._calls]
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await self.watch.stop()

    def wake(self) -> None:
        """Look again at once: this scheduler has begun to lead."""
        self._changed.set()

    async def _turn(self) -> None:
        """Wait for a change, and plan if this scheduler leads."""
        try:
            async with asyncio.timeout(TICK_S):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        if not self._may_act():
            self._is_leading = False
            self._apply()
            return
        if not self._is_leading:
            # Another scheduler may have bound pods a moment ago.
            await self.watch.pods.catch_up()
            self._is_leading = True
        began = time.monotonic()
        await self._pass()
        # A pause as long as the pass leaves the machine to the API server, and lets changes gather.
        await asyncio.sleep(max(_GATHER_S, time.monotonic() - began))

    async def _pass(self) -> None:
        self.passes += 1
        self._apply()
        now = wall_clock()
        self.model.refresh()
        is_due = time.monotonic() - self._reported_s >= REPORT_S
        if is_due:
            self._expire_rounds(now)
        made = await self._plan(now)
        calls = list(calls_of(made, self.model, _new_id))
        for call in calls:
            self._carry_out(call, now)
        if is_due:
            self.status.report(reports_of(made, self.model), self.model.pods.pods)
            self._reported_s = time.monotonic()
        if any(not isinstance(call, Preempt) for call in calls):
            # The model has changed. A preemption changes it only when the watch shows it.
            self._changed.set()

    async def _plan(self, now: Micros) -> Plan:
        """Plan in a thread, unless the plan is expected to be short."""
        if self.plan_s > _QUICK_S:
            return await asyncio.to_thread(self._timed_plan, now)
        return self._timed_plan(now)

    def _timed_plan(self, now: Micros) -> Plan:
        began = time.perf_counter()
        made = plan(self.model.state, now)
        self.model.state.accept(made)
        self.plan_s = time.perf_counter() - began
        return made

    def _apply(self) -> None:
        """Bring the model up to date."""
        self.watch.apply()
        results, self._results = self._results, []
        for result in results:
            result()
        if self._preemption is not None and self._is_shown(self._preemption):
            self._preemption = None

    # Calls

    def _carry_out(self, call: Call, now: Micros) -> None:
        match call:
            case BindGang():
                self._begin_round(call)
            case Preempt():
                self._begin_preemption(call)
            case Hold(job, places):
                self.model.hold(self.model.gangs.gangs[job], places, now)
            case Release(job):
                self.model.release(self.model.gangs.gangs[job])
            case TimeOutGang():
                self._end_wait(call, now)

    def _begin_round(self, call: BindGang) -> None:
        places = {bind.pod.uid: bind.node for bind in call.binds}
        self.model.assume(places, call.round, datetime.now(UTC))
        self._send(self._bind_gang(call))

    async def _bind_gang(self, call: BindGang) -> None:
        outcomes = await asyncio.gather(
            *(self._binder.bind(bind, call.round) for bind in call.binds)
        )
        failed = [outcome for outcome in outcomes if outcome.result is not BindResult.BOUND]
        self.binds.update(outcome.result for outcome in outcomes)
        for outcome in failed:
            log.warning(
                "pod not bound",
                gang=call.gang,
                pod=outcome.bind.pod.name,
                node=outcome.bind.node,
                result=outcome.result,
                reason=outcome.message,
            )
        if failed:
            self._later(lambda: self._withdraw(call, failed))

    def _withdraw(self, call: BindGang, failed: list[BindOutcome]) -> None:
        """Count pods as pending again that were not bound."""
        for outcome in failed:
            if outcome.bind.pod.uid in self.model.pods.pods:
                self.model.withdraw(outcome.bind.pod.uid)
        gang = self.model.gangs.gangs.get(call.gang)
        if gang is not None and any(each.result is BindResult.REFUSED for each in failed):
            self._back_off(gang, wall_clock())

    def _back_off(self, gang: KubeGang, now: Micros) -> None:
        gang.not_before = now + BACKOFF
        self.model.gangs.changed.add(gang.job)

    def _begin_preemption(self, call: Preempt) -> None:
        if self._preemption is None and call.victims:
            self._preemption = call
            self.lost_gpu_seconds += call.lost_gpu_seconds
            self._send(self._preempt(call))

    async def _preempt(self, call: Preempt) -> None:
        log.info("preempting", preemptor=call.preemptor, victims=len(call.victims))
        self.evictions.update(await self._evictor.preempt(call))
        message = f"preempted by gang {call.preemptor}"
        for victim in call.victims:
            await self._event(victim.pod, "Preempted", message)

    def _is_shown(self, call: Preempt) -> bool:
        """Whether the watch shows all victims as marked or gone."""
        pods = self.model.pods.pods
        known = (pods.get(victim.pod.uid) for victim in call.victims)
        return all(
            pod is None or pod.is_terminating or PREEMPTED_BY in pod.metadata.annotations
            for pod in known
        )

    def _end_wait(self, call: TimeOutGang, now: Micros) -> None:
        """Release what a gang holds; then it is tried again later, or its pods are marked."""
        gang = self.model.gangs.gangs[call.gang]
        self.model.release(gang)
        self._back_off(gang, now)
        if not call.retries:
            self._send(self._mark_timed_out(call.pods))

    async def _mark_timed_out(self, pods: tuple[PodReference, ...]) -> None:
        await asyncio.gather(*(self._evictor.annotate(pod, {TIMED_OUT: "true"}) for pod in pods))

    # Gangs that are bound in part

    def _expire_rounds(self, now: Micros) -> None:
        """Evict the bound pods of rounds that were not completed in time."""
        for gang in self.model.gangs.gangs.values():
            states = {member.state for member in gang.members.values()}
            if gang.is_alone or not states >= {MemberState.BOUND, MemberState.PENDING}:
                continue
            bound, pending = gang.bound, gang.pending
            rounds = incomplete_rounds(
                [member.pod for member in bound], [member.pod for member in pending]
            )
            for number, pods in rounds.items():
                if number not in self._timing_out and self._is_overdue(pods, now):
                    self._timing_out.add(number)
                    self._send(self._evict_round(gang.name, pods))

    def _is_overdue(self, pods: list[KubePod], now: Micros) -> bool:
        began = [at for pod in pods if (at := bound_at(pod)) is not None]
        limit_s = self._settings.gang_timeout_s
        return bool(began) and now / SECOND - min(began).timestamp() > limit_s

    async def _evict_round(self, gang: str, pods: list[KubePod]) -> None:
        """Bare pods would be lost for good, so they stay; the event says so."""
        message = f"gang {gang} was bound in part for {self._settings.gang_timeout_s:.0f} s"
        has_bare = any(pod.metadata.controller is None for pod in pods)
        for pod in pods:
            if has_bare:
                note = f"{message}; not evicted, because a pod of it has no controller"
                await self._event(reference(pod), "GangTimedOut", note)
            else:
                result = await self._evictor.evict(reference(pod), "GangTimedOut", message)
                self.evictions[result] += 1
                await self._event(reference(pod), "GangTimedOut", message)

    # Changes of pods

    def _on_pod(self, change: Change[KubePod]) -> None:
        before, after = change
        if after is None or not self.model.pods.is_own(after):
            return
        was_pending = before is not None and not before.spec.node_name
        if was_pending and after.spec.node_name and ROUND not in after.metadata.annotations:
            self._note_foreign_bind(after)
        was_running = before is not None and not before.is_finished
        if was_running and after.status.phase == "Failed" and _is_refusal(after.status.reason):
            self._avoid(after)

    def _note_foreign_bind(self, pod: KubePod) -> None:
        self.foreign_binds += 1
        names = pod.spec.scheduler_name
        message = (
            f"another scheduler bound the pod to {pod.spec.node_name}: two schedulers serve the"
            f" name {names}"
        )
        log.warning("foreign bind", pod=pod.metadata.key, node=pod.spec.node_name)
        if self._may_act():
            self._send(self._event(reference(pod), "ForeignBind", message))

    def _avoid(self, pod: KubePod) -> None:
        """Let a gang avoid a node whose kubelet has refused a pod of it, for a while."""
        gang, node = self.model.gangs.gang_of(pod.metadata.uid), pod.spec.node_name
        if gang is None or node in gang.avoid:
            return
        gang.avoid = (*gang.avoid, node)
        self.model.gangs.changed.add(gang.job)
        forget = lambda: self._later(lambda: self._forgive(gang, node))  # noqa: E731
        asyncio.get_running_loop().call_later(AVOID_S, forget)

    def _forgive(self, gang: KubeGang, node: str) -> None:
        gang.avoid = tuple(each for each in gang.avoid if each != node)
        self.model.gangs.changed.add(gang.job)

    # Work beside the passes

    async def _event(self, pod: PodReference, reason: str, message: str) -> None:
        try:
            await record_event(self._client, pod, reason, message)
        except (ApiStatusError, ApiUnreachableError) as error:
            log.warning("event not written", pod=pod.name, reason=str(error))

    def _later(self, result: Callable[[], None]) -> None:
        """Change the model between two plans."""
        self._results.append(result)
        self._changed.set()

    def _send(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)


def _new_id() -> str:
    return secrets.token_hex(6)


def _is_refusal(reason: str) -> bool:
    """Whether a kubelet has refused the pod, so that it never ran."""
    return reason.startswith("OutOf") or reason == "UnexpectedAdmissionError"
