"""What users see on pending pods: the condition `PodScheduled`, and an event per kind of reason.

A new kind of reason is written at once, new numbers in the message at most once a minute, and all
of it within a budget: binds come first. When many pods wait for their reason, one pod of every gang
comes first, then pods without any reason.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from phalanx.host.clock import boot_time
from phalanx.kube.api.client import ApiClient, PatchKind
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import PODS
from phalanx.kube.objects.metadata import timestamp
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.calls import PodReport
from phalanx.kube.writes.event_writer import EventWriter
from phalanx.kube.writes.write_budget import WriteBudget

#: A kind of reason is written when it has held for this long: pods of a gang arrive one by one.
SETTLE_S = 0.5
#: New numbers for the same kind of reason are written this often.
REFRESH_S = 60.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Shown(NamedTuple):
    kind: str
    message: str
    at_s: float

    def differs(self, report: PodReport, now_s: float) -> bool:
        """Whether the report is to be written in place of this."""
        if self.kind != report.kind:
            return True
        return self.message != report.message and now_s - self.at_s >= REFRESH_S


class StatusWriter:
    """Writes reports of the latest plan. A report that a newer plan replaces is never written."""

    def __init__(
        self,
        client: ApiClient,
        may_act: Callable[[], bool],
        events: EventWriter,
        budget: WriteBudget,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.writes = 0
        self._client = client
        self._may_act = may_act
        self._events = events
        self._budget = budget
        self._clock = clock
        self._shown: dict[str, _Shown] = {}  #: by uid: what the pod shows now
        self._since: dict[str, tuple[str, float]] = {}  #: by uid: the last kind, and since when
        self._due: dict[str, PodReport] = {}
        self._versions: dict[str, str] = {}  #: by uid: the version of the pod that was reported
        self._has_work = asyncio.Event()

    def report(self, reports: Iterable[PodReport], pods: dict[str, KubePod]) -> None:
        """Take over the reasons of a plan: all pending pods, with the pods as they are known."""
        due: dict[str, PodReport] = {}
        shown: dict[str, _Shown] = {}
        since: dict[str, tuple[str, float]] = {}
        versions: dict[str, str] = {}
        now_s = self._clock()
        for report in reports:
            uid = report.pod.uid
            kind, began_s = self._since.get(uid, ("", now_s))
            since[uid] = (report.kind, began_s if kind == report.kind else now_s)
            last = self._shown.get(uid) or _condition(pods.get(uid), now_s)
            if last is not None:
                shown[uid] = last
            has_settled = now_s - since[uid][1] >= SETTLE_S
            if has_settled and (last is None or last.differs(report, now_s)):
                due[uid] = report
                versions[uid] = pods[uid].metadata.resource_version if uid in pods else ""
        self._versions = versions
        self._shown, self._since, self._due = shown, since, _in_order(due, shown)
        if due:
            self._has_work.set()

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._has_work.wait()
            if not self._due:
                self._has_work.clear()
                continue
            await self._budget.take()
            if not self._due:
                continue
            uid = next(iter(self._due))
            report = self._due.pop(uid)
            if self._may_act():
                await self._write(uid, report)

    async def _write(self, uid: str, report: PodReport) -> None:
        last = self._shown.get(uid)
        self._shown[uid] = _Shown(report.kind, report.message, self._clock())
        pod = report.pod
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": report.kind,
            "message": report.message,
            "lastTransitionTime": timestamp(),
        }
        # The version is a precondition: the reason must not replace the condition of a bind.
        metadata = {"uid": pod.uid, "resourceVersion": self._versions.get(uid, "")}
        body = {"metadata": metadata, "status": {"conditions": [condition]}}
        try:
            path = PODS.path(pod.namespace, pod.name, "status")
            await self._client.patch(path, body, PatchKind.STRATEGIC)
            self.writes += 1
            if last is None or last.kind != report.kind:
                self._events.warn(pod.target, "FailedScheduling", report.message)
        except (ApiStatusError, ApiUnreachableError) as error:
            is_busy = self._budget.note(error)
            if not is_busy and not (isinstance(error, ApiStatusError) and error.code in (404, 409)):
                log.warning("status not written", pod=pod.name, reason=str(error))
            self._shown.pop(uid, None)


def _in_order(due: dict[str, PodReport], shown: dict[str, _Shown]) -> dict[str, PodReport]:
    """The reports, with one pod of every gang first, then pods without any reason, then pods with
    another kind of reason than now, and new numbers last."""
    gangs = set()
    ranks: dict[str, int] = {}
    for uid, report in due.items():
        last = shown.get(uid)
        if last is not None:
            ranks[uid] = 3 if last.kind == report.kind else 2
        else:
            ranks[uid] = 1 if report.gang in gangs else 0
            gangs.add(report.gang)
    return {uid: due[uid] for uid in sorted(due, key=ranks.__getitem__)}


def _condition(pod: KubePod | None, now_s: float) -> _Shown | None:
    """What the pod itself shows, for a scheduler that has just started."""
    for condition in () if pod is None else pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return _Shown(condition.reason, condition.message, now_s)
    return None
