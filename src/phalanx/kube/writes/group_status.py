"""The status of a PodGroup, in the form of its dialect: Volcano, Kubernetes itself, or
scheduler-plugins, whose form Koordinator and ACK use too. Nothing is sent here."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from phalanx.kube.gangs.gang import KubeGang, MemberState
from phalanx.kube.gangs.gang_translation import is_victim
from phalanx.kube.objects.gang import PodGroupStatus
from phalanx.kube.objects.metadata import ObjectCondition, time_of, time_text
from phalanx.manifest.gang_keys import GangFamily

#: Phases of Volcano. Its job controller creates pods from `Inqueue` on.
PENDING, INQUEUE = "Pending", "Inqueue"


class PodProgress(NamedTuple):
    """How far a gang is, as far as its status tells."""

    pods: int
    bound: int
    running: int
    succeeded: int
    failed: int
    minimum: int
    owners: tuple[str, ...]  #: namespace/name
    is_preempted: bool
    #: Kind and message of the reason; None if the gang is not pending.
    reason: tuple[str, str] | None
    created_at: datetime | None = None  #: of the first pod

    def began_before(self, status: PodGroupStatus) -> bool:
        """Whether the status is about these pods, not about earlier ones with their names."""
        at = time_of(status.schedule_start_time)
        return at is not None and self.created_at is not None and self.created_at <= at

    @property
    def has_minimum(self) -> bool:
        """Whether enough pods are bound or have succeeded."""
        return self.bound + self.succeeded >= self.minimum


def pod_progress(gang: KubeGang, reason: tuple[str, str] | None) -> PodProgress:
    members = [*gang.members.values()]
    states = Counter(member.state for member in members)
    phases = Counter(member.pod.status.phase for member in members)
    controllers = (member.pod.metadata.controller for member in members)
    created = [c for m in members if (c := m.pod.metadata.creation_timestamp) is not None]
    namespace = gang.name.partition("/")[0]
    owners = {f"{namespace}/{each.name}" for each in controllers if each is not None}
    return PodProgress(
        pods=len(members),
        bound=states[MemberState.BOUND],
        running=phases["Running"],
        succeeded=states[MemberState.SUCCEEDED],
        failed=states[MemberState.FAILED],
        minimum=gang.terms.minimum or 1,
        owners=tuple(sorted(owners)),
        is_preempted=any(is_victim(member.pod) for member in members),
        reason=reason,
        created_at=min(created, default=None),
    )


def group_status(
    family: GangFamily, progress: PodProgress, before: PodGroupStatus, now: datetime
) -> dict[str, Any]:
    """The fields of the status that the scheduler writes. `before` is what the PodGroup shows."""
    match family:
        case GangFamily.VOLCANO:
            return _volcano(progress, before, now)
        case GangFamily.NATIVE:
            return _native(progress, before, now)
    return _scheduler_plugins(progress, before, now)


def _volcano(progress: PodProgress, before: PodGroupStatus, now: datetime) -> dict[str, Any]:
    if progress.pods and progress.succeeded == progress.pods:
        phase = "Completed"
    elif progress.has_minimum:
        phase = "Running"
    else:
        phase = "Unknown" if progress.bound else INQUEUE
    condition = ("Scheduled", "Scheduled", "enough pods of the gang are bound")
    if not progress.has_minimum and progress.reason is not None:
        condition = ("Unschedulable", *progress.reason)
    return {
        "phase": phase,
        "running": progress.running,
        "succeeded": progress.succeeded,
        "failed": progress.failed,
        "conditions": [condition_since(condition, "True", before.conditions, now)],
    }


def refused_status(
    reason: tuple[str, str], before: Iterable[ObjectCondition], now: datetime
) -> dict[str, Any]:
    """The status of a PodGroup of Volcano whose pods are not to be created yet."""
    condition = ("Unschedulable", *reason)
    return {"phase": PENDING, "conditions": [condition_since(condition, "True", before, now)]}


def _native(progress: PodProgress, before: PodGroupStatus, now: datetime) -> dict[str, Any]:
    scheduled = ("PodGroupScheduled", "Scheduled", "enough pods of the gang are bound")
    status = "True"
    if not progress.has_minimum and progress.reason is not None:
        scheduled, status = ("PodGroupScheduled", *progress.reason), "False"
    conditions = [condition_since(scheduled, status, before.conditions, now)]
    if progress.is_preempted:
        target = ("DisruptionTarget", "PreemptionByScheduler", "pods of the gang are preempted")
        conditions.append(condition_since(target, "True", before.conditions, now))
    return {"conditions": conditions}


def _scheduler_plugins(
    progress: PodProgress, before: PodGroupStatus, now: datetime
) -> dict[str, Any]:
    started = progress.running + progress.succeeded
    if progress.pods < progress.minimum:
        phase = PENDING
    elif progress.succeeded >= progress.minimum:
        phase = "Finished"
    elif progress.failed and started + progress.failed >= progress.minimum:
        phase = "Failed"
    else:
        phase = "Running" if started >= progress.minimum else "Scheduling"
    status: dict[str, Any] = {
        "phase": phase,
        "running": progress.running,
        "succeeded": progress.succeeded,
        "failed": progress.failed,
    }
    if progress.owners:
        status["occupiedBy"] = ",".join(progress.owners)
    began = before.schedule_start_time if progress.began_before(before) else None
    status["scheduleStartTime"] = None if phase == PENDING else began or time_text(now)
    return status


def condition_since(
    given: tuple[str, str, str], status: str, before: Iterable[ObjectCondition], now: datetime
) -> dict[str, str]:
    """A condition that keeps the time of its last change."""
    kind, reason, message = given
    since = _written(now)
    for last in before:
        same = (last.type, last.status) == (kind, status)
        if same and last.last_transition_time is not None:
            since = _written(last.last_transition_time)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def _written(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
