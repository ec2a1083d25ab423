"""PodGroups as users see them: status and events in the form of each dialect, and PodGroups that
the scheduler creates for gangs which only labels or annotations declare.

A status is written when something other than its text has changed, and new text at most once a
minute. Only PodGroups with pods of this scheduler are written; in Volcano also those without pods.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from phalanx.host.clock import boot_time
from phalanx.kube.api.client import ApiClient, PatchKind
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.gangs.gang import KubeGang
from phalanx.kube.gangs.gang_table import CURRENT_API, GroupObject
from phalanx.kube.gangs.gang_terms import GangKey
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.writes.calls import AdmitGroup, PodReport, RefuseGroup, group_admissions
from phalanx.kube.writes.event_writer import EventWriter
from phalanx.kube.writes.group_status import INQUEUE, group_status, pod_progress, refused_status
from phalanx.kube.writes.open_calls import OpenCalls
from phalanx.kube.writes.output_groups import CreateGroup, DeleteGroup, output_changes
from phalanx.kube.writes.status_writer import REFRESH_S, SETTLE_S
from phalanx.kube.writes.write_budget import WriteBudget
from phalanx.manifest.gang_keys import GangFamily

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Shown(NamedTuple):
    """The status that a PodGroup has, as far as it was written here."""

    uid: str
    status: dict[str, Any]
    at_s: float


class _Wanted(NamedTuple):
    item: GroupObject
    status: dict[str, Any]
    since_s: float  #: since when the status is the same but for its text
    reason: tuple[str, str] | None  #: kind and message for an event, if the gang is pending


class GroupWriter:
    def __init__(
        self,
        client: ApiClient,
        may_act: Callable[[], bool],
        events: EventWriter,
        budget: WriteBudget,
        calls: OpenCalls,
    ) -> None:
        self.writes = 0
        self._client = client
        self._may_act = may_act
        self._events = events
        self._budget = budget
        self._calls = calls
        self._shown: dict[GangKey, _Shown] = {}
        self._wanted: dict[GangKey, _Wanted] = {}
        #: By PodGroup: what its status follows from, and the kind of its last event.
        self._seen: dict[GangKey, tuple[object, ...]] = {}
        self._kinds: dict[GangKey, str] = {}
        self._outputs: list[CreateGroup | DeleteGroup] = []
        #: PodGroups that were created here and had no pods at the last look.
        self._without_pods: set[DeleteGroup] = set()
        #: By uid: the answer that a PodGroup of Volcano without pods has got.
        self._answered: dict[str, AdmitGroup | RefuseGroup] = {}
        self._has_work = asyncio.Event()

    def report(
        self, model: ClusterModel, reports: Iterable[PodReport], *, can_create: bool
    ) -> None:
        """Take over the state of all gangs. `can_create`: the cluster has the PodGroups that are
        created here."""
        reasons = {each.gang: (each.kind, each.message) for each in reports}
        self._admit(model)
        for key in model.gangs.group_keys():
            gang, item = model.gangs.gangs.get(key.job), model.gangs.object_of(key)
            if gang is None or item is None or not _is_own(gang, model):
                continue
            self._look_at(key, gang, item, reasons)
        for known in (self._shown, self._wanted, self._seen, self._kinds):
            for key in [key for key in known if model.gangs.object_of(key) is None]:
                del known[key]
        if can_create:
            self._look_at_outputs(model)
        if self._outputs or self._wanted:
            self._has_work.set()

    def _look_at(
        self,
        key: GangKey,
        gang: KubeGang,
        item: GroupObject,
        reasons: Mapping[str, tuple[str, str]],
    ) -> None:
        reason = reasons.get(gang.job)
        progress = pod_progress(gang, reason)
        if not progress.has_minimum and reason is None and gang.pending:
            return  # its binds are on their way
        seen = (progress, item.group.metadata.uid)
        if self._seen.get(key) == seen:
            return
        status = group_status(key.family, progress, item.group.status, datetime.now(UTC))
        now_s, last = boot_time(), self._last(key, item)
        is_same_kind = _kind(status) == _kind({name: last.status.get(name) for name in status})
        is_same_text = _texts(status) == _texts(last.status)
        if is_same_kind and (is_same_text or now_s - last.at_s < REFRESH_S):
            self._wanted.pop(key, None)
            if is_same_text:
                self._seen[key] = seen
            return
        pending = self._wanted.get(key)
        is_same = pending is not None and _kind(pending.status) == _kind(status)
        since_s = pending.since_s if pending is not None and is_same else now_s
        if progress.has_minimum:
            self._kinds.pop(key, None)
            reason = None
        self._wanted[key] = _Wanted(item, status, since_s, reason)

    def _last(self, key: GangKey, item: GroupObject) -> _Shown:
        """What the PodGroup shows: what was written last, or what it was read with."""
        shown = self._shown.get(key)
        if shown is not None and shown.uid == item.group.metadata.uid:
            return shown
        return _Shown(item.group.metadata.uid, item.group.status.written(), boot_time())

    # PodGroups of Volcano without pods

    def _admit(self, model: ClusterModel) -> None:
        """Set PodGroups to `Inqueue` at once: a controller waits for it to create pods. Others get
        a condition that says why they stay."""
        answers = list(group_admissions(model))
        answered = self._answered
        self._answered = {each.uid: each for each in answers if answered.get(each.uid) == each}
        for each in answers:
            item = model.gangs.object_of(GangKey(GangFamily.VOLCANO, each.namespace, each.name))
            if item is not None and each.uid not in self._answered and self._may_act():
                self._answered[each.uid] = each
                self._calls.send(self._answer(each, item))

    async def _answer(self, call: AdmitGroup | RefuseGroup, item: GroupObject) -> None:
        status: dict[str, Any] = {"phase": INQUEUE}
        if isinstance(call, RefuseGroup):
            before, now = item.group.status.conditions, datetime.now(UTC)
            status = refused_status((call.kind, call.message), before, now)
        if not await self._patch(item, status):
            self._answered.pop(call.uid, None)
        elif isinstance(call, RefuseGroup):
            self._events.warn(item.target, call.kind, call.message)

    # PodGroups that are created here

    def _look_at_outputs(self, model: ClusterModel) -> None:
        changes = list(output_changes(model))
        gone = {each for each in changes if isinstance(each, DeleteGroup)}
        # Pods that end leave one watch before they arrive in another: look twice.
        self._outputs = [
            each for each in changes if isinstance(each, CreateGroup) or each in self._without_pods
        ]
        self._without_pods = gone

    async def _write_output(self, change: CreateGroup | DeleteGroup) -> None:
        groups = CURRENT_API.resource
        try:
            if isinstance(change, CreateGroup):
                await self._client.request("POST", groups.path(change.namespace), change.body)
            else:
                await self._client.delete(groups, change.name, change.namespace, uid=change.uid)
        except (ApiStatusError, ApiUnreachableError) as error:
            is_busy = self._budget.note(error)
            if not is_busy and not (isinstance(error, ApiStatusError) and error.code in (404, 409)):
                log.warning("PodGroup not changed", reason=str(error))

    # Writing

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._has_work.wait()
            await self._budget.take()
            if self._outputs and self._may_act():
                await self._write_output(self._outputs.pop(0))
                continue
            now_s = boot_time()
            settled = (
                key for key, each in self._wanted.items() if now_s - each.since_s >= SETTLE_S
            )
            key = next(settled, None)
            if key is None:
                self._has_work.clear()  # the next report looks again
            elif self._may_act():
                await self._write(key, self._wanted.pop(key))

    async def _write(self, key: GangKey, wanted: _Wanted) -> None:
        uid = wanted.item.group.metadata.uid
        self._shown[key] = _Shown(uid, wanted.status, boot_time())
        if not await self._patch(wanted.item, wanted.status):
            self._shown.pop(key, None)
        elif wanted.reason is not None and self._kinds.get(key) != wanted.reason[0]:
            self._kinds[key] = wanted.reason[0]
            self._events.warn(wanted.item.target, *wanted.reason)

    async def _patch(self, item: GroupObject, status: dict[str, Any]) -> bool:
        """Write fields of a status; False if the PodGroup is as it was."""
        metadata, resource = item.group.metadata, item.api.resource
        subresource = "status" if item.api.has_status else ""
        path = resource.path(metadata.namespace, metadata.name, subresource)
        is_built_in = resource.group == "scheduling.k8s.io"
        kind = PatchKind.STRATEGIC if is_built_in else PatchKind.MERGE
        body = {"metadata": {"uid": metadata.uid}, "status": status}
        try:
            await self._client.patch(path, body, kind)
        except (ApiStatusError, ApiUnreachableError) as error:
            is_busy = self._budget.note(error)
            if not is_busy and not (isinstance(error, ApiStatusError) and error.code in (404, 409)):
                log.warning("PodGroup not written", group=metadata.key, reason=str(error))
            return False
        self.writes += 1
        return True


def _is_own(gang: KubeGang, model: ClusterModel) -> bool:
    return any(model.pods.is_own(pod) for pod in gang.pods())


def _kind(status: dict[str, Any]) -> dict[str, Any]:
    """A status without its times, and without the text of its conditions."""
    parts = ("type", "status", "reason")
    conditions = [
        tuple(each.get(part) for part in parts) for each in status.get("conditions") or ()
    ]
    counts = {name: each for name, each in status.items() if name != "scheduleStartTime"}
    return {**counts, "conditions": sorted(conditions, key=str)}


def _texts(status: dict[str, Any]) -> list[str]:
    return [each.get("message", "") for each in status.get("conditions") or ()]
