"""The scheduler: changes of the cluster become a plan, and the plan becomes calls.

The API server is the only source of truth. One pass runs at a time. Binds and evictions are sent
beside it, and count as done in the model until the watch shows them or they are refused.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import structlog
from prometheus_client import Histogram

from phalanx.core.text import plural
from phalanx.core.time_units import SECOND, Micros
from phalanx.host.clock import wall_clock
from phalanx.host.interpreter import loading
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.reflector import Change
from phalanx.kube.cluster_watch import ClusterWatch
from phalanx.kube.gangs.gang import HELD_SINCE, KubeGang
from phalanx.kube.gangs.gang_table import CURRENT_API
from phalanx.kube.gangs.gang_terms import TIMED_OUT
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.model.refused_nodes import is_refusal
from phalanx.kube.objects.metadata import time_text
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.binder import Binder, BindOutcome, BindResult
from phalanx.kube.writes.calls import (
    Bind,
    BindGang,
    Call,
    Hold,
    PodReference,
    PodReport,
    Preempt,
    Release,
    TimeOutGang,
    calls_of,
    cleared_nominations,
    reference,
    reports_of,
)
from phalanx.kube.writes.event_writer import EventWriter
from phalanx.kube.writes.evictor import Evictor
from phalanx.kube.writes.group_writer import GroupWriter
from phalanx.kube.writes.open_calls import OpenCalls
from phalanx.kube.writes.queue_writer import QueueWriter
from phalanx.kube.writes.rounds import is_foreign_bind
from phalanx.kube.writes.rounds_expiry import RoundsExpiry
from phalanx.kube.writes.status_writer import StatusWriter
from phalanx.kube.writes.unused_fields import UnusedFieldEvents
from phalanx.kube.writes.victim_evictions import VictimEvictions
from phalanx.kube.writes.write_budget import WRITERS, WriteBudget
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Plan

#: A pass runs at least this often: for timeouts, and for what no watch reports.
TICK_S = 1.0
#: Reasons and timeouts are looked at this often: they concern every gang, not only changed ones.
REPORT_S = 0.5
#: A plan that is expected to take longer runs in a thread.
_QUICK_S = 0.002
#: The shortest pause after a plan, in which changes gather.
_GATHER_S = 0.002
#: The wait of a gang after a bind of it was refused, or after its timeout.
BACKOFF: Micros = 5 * SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class SchedulerSettings(NamedTuple):
    scheduler_names: tuple[str, ...] = ("phalanx",)
    node_labels: str = ""  #: a label selector: place pods only on these nodes
    #: A gang that is bound in part for longer is evicted.
    gang_timeout_s: float = 60.0
    #: A victim that saves its work is evicted after this time at the latest.
    checkpoint_wait_s: float = 60.0


class KubeScheduler:
    def __init__(
        self, client: ApiClient, settings: SchedulerSettings, may_act: Callable[[], bool]
    ) -> None:
        self.model = ClusterModel(settings.scheduler_names)
        self.binds: Counter[BindResult] = Counter()
        self.passes = 0
        self.foreign_binds = 0
        self.is_ready = False
        self._may_act = may_act
        self._changed = asyncio.Event()
        self.watch = ClusterWatch(
            client, self.model, self._changed.set, self._on_pod, settings.node_labels
        )
        self._rounds_under_way = 0
        budget = WriteBudget(lambda: self._rounds_under_way > 0)
        self.events = EventWriter(client, may_act, budget)
        self.status = StatusWriter(client, may_act, self.events, budget)
        self._binder = Binder(client, may_act)
        self._evictor = Evictor(client, may_act)
        self._calls = OpenCalls()
        self.groups = GroupWriter(client, may_act, self.events, budget, self._calls)
        self.queues = QueueWriter(client, may_act, budget, settings.scheduler_names)
        self._unused_fields = UnusedFieldEvents(self.events, may_act)
        parts = (self.model, self._evictor, self._calls, self.events)
        self.preemptions = VictimEvictions(*parts, settings.checkpoint_wait_s)
        self._expiry = RoundsExpiry(*parts, settings.gang_timeout_s)
        #: Results of calls, which are applied between two plans.
        self._results: list[Callable[[], None]] = []
        #: All pods were listed after this scheduler had begun to lead.
        self._is_current = False
        self.plan_s = 0.0  #: duration of the last plan
        self._passed_s = 0.0
        self._reported_s = 0.0

    @property
    def bind_seconds(self) -> Histogram:
        return self._binder.seconds

    @property
    def evictions(self) -> Counter[str]:
        """Evictions by result."""
        return self.preemptions.results + self._expiry.results

    async def run(self) -> None:
        """Schedule until cancelled."""
        single, several = (self.groups, self.queues), (self.status, self.events)
        writers = (*single, *several * WRITERS)
        writing = [asyncio.create_task(each.run()) for each in writers]
        try:
            self._is_current = self._may_act()
            with loading():
                await self.watch.start()
                self._apply()
                self.model.refresh()
            self.is_ready = True
            while True:
                await self._turn()
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
            await self._calls.stop()
            await self.watch.stop()

    def leadership_changed(self) -> None:
        """Look again at once: this scheduler has begun to lead, or no longer leads."""
        self._is_current = False
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
            self._is_current = False
            self._apply()
            return
        if not self._is_current:
            # Another scheduler may have bound pods a moment ago.
            self._is_current = True
            await self.watch.catch_up()
            if not self._is_current:
                return  # another one led in between; this turn has been asked for again
        began = time.monotonic()
        self._apply()
        has_planned = False
        if self.model.has_changed or began - self._passed_s >= TICK_S:
            self._passed_s = began
            has_planned = await self._pass()
        passed_s = time.monotonic() - began
        if has_planned or passed_s > _GATHER_S:
            # A pause as long as the pass leaves the machine to the API server, and lets changes
            # gather.
            await asyncio.sleep(max(_GATHER_S, passed_s))

    async def _pass(self) -> bool:
        """Take the next steps of what is under way, and plan if a plan could start a gang or
        reasons are due; whether there was a plan."""
        now = wall_clock()
        self.model.advance(now)
        self.model.refresh()
        self.preemptions.advance()
        is_due = time.monotonic() - self._reported_s >= REPORT_S
        if is_due:
            self._expiry.check()
        elif not self.model.has_eligible_gangs:
            return False
        self.passes += 1
        made = await self._plan(now)
        calls = list(calls_of(made, self.model, _new_id))
        for call in calls:
            self._carry_out(call, now)
        if is_due:
            await asyncio.sleep(0)  # binds are sent before reasons are looked at
            for cleared in cleared_nominations(made, self.model):
                self.preemptions.clear(cleared)
            self._report(list(reports_of(made, self.model)))
            self._reported_s = time.monotonic()
        if any(not isinstance(call, Preempt) for call in calls):
            # The model has changed. A preemption changes it only when the watch shows it.
            self._changed.set()
        return True

    def _report(self, reports: list[PodReport]) -> None:
        self.status.report(reports, self.model.pods.pods)
        group = CURRENT_API.resource
        can_create = self.watch.serves(group.group, group.plural)
        self.groups.report(self.model, reports, can_create=can_create)
        self.queues.report(self.model, self.watch.queue_objects())
        self._unused_fields.report(self.model)

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

    # Calls

    def _carry_out(self, call: Call, now: Micros) -> None:
        match call:
            case BindGang():
                self._begin_round(call)
            case Preempt():
                self.preemptions.begin(call)
            case Hold(job, places):
                self._hold(self.model.gangs.gangs[job], places, now)
            case Release(job):
                self._release(self.model.gangs.gangs[job], now)
            case TimeOutGang():
                self._end_wait(call, now)

    def _begin_round(self, call: BindGang) -> None:
        places = {bind.pod.uid: bind.node for bind in call.binds}
        self.model.assume(places, call.round, datetime.now(UTC))
        self._rounds_under_way += 1
        self._calls.send(self._bind_gang(call))

    async def _bind_gang(self, call: BindGang) -> None:
        try:
            outcomes = await asyncio.gather(
                *(self._binder.bind(bind, call.round) for bind in call.binds)
            )
        finally:
            self._rounds_under_way -= 1
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
        self._note_bound([each.bind for each in outcomes if each.result is BindResult.BOUND], call)

    def _note_bound(self, binds: list[Bind], call: BindGang) -> None:
        """Write an event for each bound pod, and one for the PodGroup."""
        gang = self.model.gangs.gangs.get(call.gang)
        of_gang = "" if gang is None or gang.is_alone else f", in gang {gang.name}"
        for bind in binds:
            self.events.note(bind.pod.target, "Scheduled", f"bound to {bind.node}{of_gang}")
        group = None if gang is None else self.model.gangs.group_target(gang)
        if group is not None and binds:
            nodes = plural(len({bind.node for bind in binds}), "node")
            message = f"bound {plural(len(binds), 'pod')} to {nodes}"
            self.events.note(group, "Scheduled", message)

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

    # Gangs that hold nodes

    def _hold(self, gang: KubeGang, places: dict[int, str], now: Micros) -> None:
        """Hold nodes, and write since when the gang holds any: the wait outlives the scheduler."""
        self.model.hold(gang, places, now)
        since = datetime.fromtimestamp((gang.held_since or now) / SECOND, UTC)
        held = [gang.members[number].pod for number in places]
        self._annotate(map(reference, held), {HELD_SINCE: time_text(since)})

    def _release(self, gang: KubeGang, now: Micros) -> None:
        held = [member.pod for member in gang.pending]
        self.model.release(gang, now)
        self._annotate(map(reference, held), {HELD_SINCE: None})

    def _end_wait(self, call: TimeOutGang, now: Micros) -> None:
        """Release what a gang holds; then it is tried again later, or its pods are marked."""
        gang = self.model.gangs.gangs[call.gang]
        self.model.release(gang, now)
        self._back_off(gang, now)
        mark = {} if call.retries else {TIMED_OUT: "true"}
        self._annotate(call.pods, {HELD_SINCE: None, **mark})
        waited = f"{(gang.terms.timeout or 0) / SECOND:.0f} s"
        message = f"gang {gang.name} did not start within {waited} of holding its first node"
        message += "; it is tried again" if call.retries else "; its pods are not placed again"
        group = self.model.gangs.group_target(gang)
        targets = [pod.target for pod in call.pods] + ([] if group is None else [group])
        for target in targets:
            self.events.warn(target, "Timeout", message)

    def _annotate(
        self, pods: Iterable[PodReference], annotations: Mapping[str, str | None]
    ) -> None:
        for pod in pods:
            self._calls.send(self._evictor.annotate(pod, annotations))

    # Changes of pods

    def _on_pod(self, change: Change[KubePod]) -> None:
        """Look at a change of a pod before the model follows it."""
        before, after = change
        if after is None or not self.model.pods.is_own(after):
            return
        if is_foreign_bind(before, after):
            self._note_foreign_bind(after)
        if is_refusal(after):
            self.model.note_refusal(after, wall_clock())

    def _note_foreign_bind(self, pod: KubePod) -> None:
        self.foreign_binds += 1
        names = pod.spec.scheduler_name
        message = (
            f"another scheduler bound the pod to {pod.spec.node_name}: two schedulers serve the"
            f" name {names}"
        )
        log.warning("foreign bind", pod=pod.metadata.key, node=pod.spec.node_name)
        self.events.warn(reference(pod).target, "ForeignBind", message)

    # Work beside the passes

    def _later(self, result: Callable[[], None]) -> None:
        """Change the model between two plans."""
        self._results.append(result)
        self._changed.set()


def _new_id() -> str:
    return secrets.token_hex(6)
