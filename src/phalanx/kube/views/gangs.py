"""Gangs and their pods as their objects show them: the reasons are those that the scheduler has
written."""

from collections.abc import Iterator
from datetime import UTC, datetime
from difflib import get_close_matches

import msgspec

from phalanx.core.time_units import SECOND
from phalanx.kube.gangs.gang import GangMember, KubeGang, MemberState
from phalanx.kube.gangs.gang_translation import PREEMPTED_BY, is_victim
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.metadata import ObjectCondition, time_of
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.checkpoints import PREEMPT_AT

#: States of a gang, in the order in which a list shows them.
PENDING, PARTIAL, STOPPING, RUNNING, DONE, FAILED = (
    *("pending", "partial", "stopping", "running", "done", "failed"),
)


class PodView(msgspec.Struct, frozen=True):
    name: str
    state: str  #: pending, gated, bound, running, evicting, stopping, succeeded or failed
    node: str | None
    reason: str | None = None  #: of a pending pod, in one word
    message: str | None = None
    reason_at: datetime | None = None  #: when the reason was written
    preemptor: str | None = None  #: the gang for which the pod is evicted
    evicted_at: datetime | None = None  #: or when it is evicted at the latest
    has_controller: bool = True  #: which creates another pod in its place


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
    notes: tuple[str, ...] = ()  #: parts that are read differently than they are written

    @property
    def message(self) -> str:
        """Why the gang is pending or stopping; empty if no reason is known."""
        if (eviction := self.eviction) is not None:
            return eviction
        messages = dict.fromkeys(pod.message for pod in self.pods if pod.message)
        text = next(iter(messages), "")
        return text.removeprefix(f"gang {self.namespace}/{self.name}: ")

    @property
    def reason_at(self) -> datetime | None:
        """When the reason was written."""
        return max((pod.reason_at for pod in self.pods if pod.reason_at), default=None)

    @property
    def eviction(self) -> str | None:
        """By whom the gang is being evicted, and why; None if it is not."""
        return next((pod.message for pod in self.pods if pod.preemptor and pod.message), None)


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
    return GangView(
        namespace,
        name,
        _gang_state(gang),
        model.queue_of(gang).name,
        gang.priority,
        gang.terms.minimum,
        len(gang.bound),
        tuple(map(_pod_view, sorted(gang.members.values(), key=_by_name))),
        datetime.fromtimestamp(gang.created_at / SECOND, UTC) if gang.created_at else None,
        is_pod=gang.is_alone,
        notes=gang.notes,
    )


def _by_name(member: GangMember) -> str:
    return member.pod.metadata.name


def _gang_state(gang: KubeGang) -> str:
    states = {member.state for member in gang.members.values()}
    if any(_is_evicted(member) for member in gang.members.values()):
        return STOPPING
    is_pending = not states.isdisjoint((MemberState.PENDING, MemberState.BLOCKED))
    if MemberState.BOUND in states:
        return PARTIAL if is_pending else RUNNING
    if is_pending:
        return PENDING
    if MemberState.LEAVING in states:
        return STOPPING
    return FAILED if MemberState.FAILED in states else DONE


def _is_evicted(member: GangMember) -> bool:
    """Whether the pod still runs, and is evicted for a gang."""
    return member.state in (MemberState.BOUND, MemberState.LEAVING) and is_victim(member.pod)


def _pod_view(member: GangMember) -> PodView:
    pod = member.pod
    name, state, node = pod.metadata.name, _pod_state(member), member.node or None
    has_controller = pod.metadata.controller is not None
    if _is_evicted(member):
        preemptor = pod.metadata.annotations[PREEMPTED_BY]
        target = condition_of(pod, "DisruptionTarget")
        is_written = target is not None and target.reason == "PreemptionByScheduler"
        return PodView(
            name,
            state,
            node,
            reason="Preempted",
            message=target.message if target and is_written else f"evicted for gang {preemptor}",
            reason_at=None if target is None else target.last_transition_time,
            preemptor=preemptor,
            evicted_at=pod.metadata.deletion_timestamp
            or time_of(pod.metadata.annotations.get(PREEMPT_AT)),
            has_controller=has_controller,
        )
    written = condition_of(pod, "PodScheduled") if member.state is MemberState.PENDING else None
    if written is None or written.status != "False":
        return PodView(name, state, node, has_controller=has_controller)
    at = written.last_transition_time
    reason, message = written.reason or None, written.message or None
    return PodView(name, state, node, reason, message, at, has_controller=has_controller)


def _pod_state(member: GangMember) -> str:
    if _is_evicted(member):
        return "stopping" if member.pod.is_terminating else "evicting"
    match member.state:
        case MemberState.BLOCKED:
            return "stopping" if member.pod.is_terminating else "gated"
        case MemberState.LEAVING:
            return "stopping"
        case MemberState.BOUND:
            return "running" if member.pod.status.phase == "Running" else "bound"
    return str(member.state)


def condition_of(pod: KubePod, kind: str) -> ObjectCondition | None:
    """The pod's condition of this type."""
    return next((each for each in pod.status.conditions if each.type == kind), None)


def similar_names(model: ClusterModel, namespace: str, name: str) -> list[str]:
    """Names of pods and gangs of the namespace that a user may have meant."""
    pods = (pod.metadata.key for pod in model.pods.pods.values() if model.pods.is_own(pod))
    gangs = (gang.name for gang in model.gangs.gangs.values() if is_own(model, gang))
    keys = (key.partition("/") for key in {*pods, *gangs})
    return get_close_matches(name, sorted(each for space, _, each in keys if space == namespace))


def missing_namespace(model: ClusterModel, namespace: str) -> str | None:
    """A sentence if the namespace does not exist; None if it does, or the user may not list
    namespaces."""
    if not namespace or not model.namespaces or namespace in model.namespaces:
        return None
    near = get_close_matches(namespace, model.namespaces, n=1)
    cure = f"did you mean {near[0]}?" if near else "choose one with -n, or list all with -A"
    return f"namespace {namespace} does not exist; {cure}"


def group_without_pods(model: ClusterModel, namespace: str, name: str) -> str | None:
    """What is known about a PodGroup with this name whose pods have not been created."""
    for each in model.gangs.groups_without_pods():
        if each.key.full_name == f"{namespace}/{name}":
            item = model.gangs.object_of(each.key)
            conditions = () if item is None else item.group.status.conditions
            reasons = [c.message for c in conditions if c.status == "True" and c.message]
            why = f": {reasons[0]}" if reasons else "; its controller has not created them"
            return f"PodGroup {each.key.full_name} has no pods{why}"
    return None


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
