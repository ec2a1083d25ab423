"""Gangs and their pods as their objects show them: the reasons are those that the scheduler has
written."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from phalanx.core.time_units import SECOND
from phalanx.kube.gangs.gang import GangMember, KubeGang, MemberState
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.pod import KubePod

#: States of a gang, in the order in which a list shows them.
PENDING, PARTIAL, STOPPING, RUNNING, DONE, FAILED = (
    *("pending", "partial", "stopping", "running", "done", "failed"),
)


class PodView(msgspec.Struct, frozen=True):
    name: str
    state: str  #: pending, gated, bound, running, stopping, succeeded or failed
    node: str | None
    reason: str | None = None  #: of a pending pod, in one word
    message: str | None = None


class GangView(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    state: str
    queue: str
    priority: int
    min_available: int | None  #: None: not known, because the PodGroup is missing
    bound: int
    pods: tuple[PodView, ...]
    created_at: datetime | None
    is_pod: bool = False  #: a pod without a gang

    @property
    def message(self) -> str:
        """Why the gang is pending; empty if no reason is known."""
        messages = dict.fromkeys(pod.message for pod in self.pods if pod.message)
        text = next(iter(messages), "")
        return text.removeprefix(f"gang {self.namespace}/{self.name}: ")


def gang_views(model: ClusterModel) -> list[GangView]:
    """The gangs with pods of the scheduler; pending ones first, in the planner's order. Finished
    pods without a gang are left out."""
    own = (gang for gang in model.gangs.gangs.values() if is_own(model, gang))
    views = [view for view in (gang_view(model, gang) for gang in own) if not _is_old(view)]
    order = (PENDING, PARTIAL, STOPPING, RUNNING, DONE, FAILED)
    created = {view: view.created_at.timestamp() if view.created_at else 0.0 for view in views}
    views.sort(key=lambda v: (order.index(v.state), -v.priority, created[v], v.namespace, v.name))
    return views


def _is_old(view: GangView) -> bool:
    return view.is_pod and view.state in (DONE, FAILED)


def is_own(model: ClusterModel, gang: KubeGang) -> bool:
    """Whether the gang has a pod of the scheduler."""
    return any(model.pods.is_own(pod) for pod in gang.pods())


def gang_view(model: ClusterModel, gang: KubeGang) -> GangView:
    namespace, _, name = gang.name.partition("/")
    priorities = [pod.spec.priority for pod in gang.pods()]
    return GangView(
        namespace,
        name,
        _gang_state(gang),
        model.queue_of(gang).name,
        min(priorities),
        gang.terms.minimum,
        len(gang.bound),
        tuple(map(_pod_view, sorted(gang.members.values(), key=_by_name))),
        datetime.fromtimestamp(gang.created_at / SECOND, UTC) if gang.created_at else None,
        is_pod=gang.is_alone,
    )


def _by_name(member: GangMember) -> str:
    return member.pod.metadata.name


def _gang_state(gang: KubeGang) -> str:
    states = {member.state for member in gang.members.values()}
    is_pending = not states.isdisjoint((MemberState.PENDING, MemberState.BLOCKED))
    if MemberState.BOUND in states:
        return PARTIAL if is_pending else RUNNING
    if is_pending:
        return PENDING
    if MemberState.LEAVING in states:
        return STOPPING
    return FAILED if MemberState.FAILED in states else DONE


def _pod_view(member: GangMember) -> PodView:
    pod = member.pod
    reason, message = written_reason(pod) if member.state is MemberState.PENDING else (None, None)
    return PodView(pod.metadata.name, _pod_state(member), member.node or None, reason, message)


def _pod_state(member: GangMember) -> str:
    match member.state:
        case MemberState.BLOCKED:
            return "stopping" if member.pod.is_terminating else "gated"
        case MemberState.LEAVING:
            return "stopping"
        case MemberState.BOUND:
            return "running" if member.pod.status.phase == "Running" else "bound"
    return str(member.state)


def written_reason(pod: KubePod) -> tuple[str | None, str | None]:
    """Reason and message that a scheduler has written to a pending pod."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.reason or None, condition.message or None
    return None, None


def find_gangs(model: ClusterModel, namespace: str, name: str) -> Iterator[KubeGang]:
    """The gangs with this name, or the gang of the pod with this name."""
    gangs = [model.gangs.gangs[job] for job in model.gangs.named(f"{namespace}/{name}")]
    named = [gang for gang in gangs if not gang.is_alone]
    if named:
        yield from named
        return
    for pod in model.pods.pods.values():
        if pod.metadata.namespace == namespace and pod.metadata.name == name:
            gang = model.gangs.gang_of(pod.metadata.uid)
            if gang is not None:
                yield gang
