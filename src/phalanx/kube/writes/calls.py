"""A plan as calls to the API server, as plain values. Nothing is sent here.

A decision becomes calls only if every gang in it is as it was when the plan was made; else the next
plan decides again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from phalanx.core import reasons as why
from phalanx.core.events import Placement
from phalanx.kube.gangs.gang import KubeGang
from phalanx.kube.gangs.gang_translation import half_bound
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.objects.metadata import ObjectReference
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.checkpoints import checkpoint_wish
from phalanx.kube.writes.reason_text import condition_message, kind_of
from phalanx.kube.writes.rounds import BindRound, bound_at
from phalanx.manifest.gang_keys import GangFamily
from phalanx.plan.decisions import (
    Evict,
    Gather,
    Plan,
    PlannedVictim,
    ReleaseGathered,
    Reserve,
    TimeOut,
)


class PodReference(NamedTuple):
    namespace: str
    name: str
    uid: str  #: a precondition of every call

    @property
    def target(self) -> ObjectReference:
        """The pod as the object of an event."""
        return ObjectReference("v1", "Pod", self.namespace, self.name, self.uid)


class Bind(NamedTuple):
    pod: PodReference
    node: str


class BindGang(NamedTuple):
    """Bind pods of a gang, all with the annotation of one round."""

    gang: str
    round: BindRound
    binds: tuple[Bind, ...]


class EvictPod(NamedTuple):
    pod: PodReference
    preemptor: str  #: name of the gang
    wants_checkpoint: bool  #: it is asked to save its work first


class Preempt(NamedTuple):
    """Nominate nodes for the preemptor's pods, mark its victims, then evict them. Without victims:
    keep nodes that stopping pods are about to free."""

    preemptor: str
    nominations: tuple[Bind, ...]
    victims: tuple[EvictPod, ...]
    lost_gpu_seconds: float


class Hold(NamedTuple):
    """Hold nodes for pods of a non-strict gang: number of the pod → node."""

    gang: str
    places: dict[int, str]


class Release(NamedTuple):
    """Give up the nodes that a gang holds."""

    gang: str


class TimeOutGang(NamedTuple):
    """End the wait of a gang that holds nodes: release them, then mark its pods, or try again
    later."""

    gang: str
    pods: tuple[PodReference, ...]
    retries: bool


class TimeOutRound(NamedTuple):
    """Evict the bound pods of a gang that has been half bound for too long. Without a controller a
    pod would be lost for good, so such pods stay, with an event."""

    gang: str
    evicted: tuple[PodReference, ...]
    kept: tuple[PodReference, ...]


class ClearNomination(NamedTuple):
    """Nominate no node for these pods any more: their victims are gone, and they do not fit."""

    gang: str
    pods: tuple[PodReference, ...]


class AdmitGroup(NamedTuple):
    """Set a PodGroup of Volcano to `Inqueue`, so that its controller creates the pods."""

    namespace: str
    name: str
    uid: str


class RefuseGroup(NamedTuple):
    """Leave a PodGroup of Volcano pending, and say why."""

    namespace: str
    name: str
    uid: str
    kind: str
    message: str


class PodReport(NamedTuple):
    """Why a pod is pending: reason and message of its condition `PodScheduled`."""

    pod: PodReference
    kind: str
    message: str
    gang: str  #: the planner's id


Call = BindGang | Preempt | Hold | Release | TimeOutGang


def calls_of(plan: Plan, model: ClusterModel, new_id: Callable[[], str]) -> Iterator[Call]:
    """The calls of a plan, in its order. `new_id` gives each round of binds its id."""
    for decision in plan.decisions:
        match decision:
            case Reserve(placements):
                yield from _binds(placements, model, new_id)
            case Evict(placements, victims):
                preempt = _preempt(placements, victims, model)
                if preempt is not None:
                    yield preempt
            case Gather(placement):
                gang = _current(placement.job, placement.version, model)
                if gang is not None:
                    places = {each.task: each.worker for each in placement.assignments}
                    yield Hold(gang.job, places)
            case ReleaseGathered(job, version):
                if _current(job, version, model) is not None:
                    yield Release(job)
            case TimeOut(job):
                gang = model.gangs.gangs.get(job)
                if gang is not None:
                    pods = tuple(reference(member.pod) for member in gang.pending)
                    yield TimeOutGang(job, pods, gang.terms.retries)


def reference(pod: KubePod) -> PodReference:
    return PodReference(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)


def _current(job: str, version: int, model: ClusterModel) -> KubeGang | None:
    """The gang of a decision; None if it has changed since the plan was made. A pod that is placed
    by itself has the number of the pod in its id."""
    gang = model.gangs.gangs.get(job.partition("#")[0])
    return gang if gang is not None and gang.version == version else None


def _placed(placement: Placement, model: ClusterModel) -> tuple[KubeGang, tuple[Bind, ...]] | None:
    """The binds of a placement; None if its gang has changed."""
    gang = _current(placement.job, placement.version, model)
    if gang is None:
        return None
    pods = [gang.members[each.task].pod for each in placement.assignments]
    nodes = [each.worker for each in placement.assignments]
    return gang, tuple(Bind(reference(pod), node) for pod, node in zip(pods, nodes, strict=True))


def _binds(
    placements: Iterable[Placement], model: ClusterModel, new_id: Callable[[], str]
) -> Iterator[BindGang]:
    """The binds of gangs that start together: all of them, or none if one has changed."""
    placed = [_placed(placement, model) for placement in placements]
    for each in placed if None not in placed else ():
        if each is not None:
            gang, binds = each
            yield BindGang(gang.job, BindRound(new_id(), len(binds), len(gang.pending)), binds)


def _preempt(
    placements: Sequence[Placement], victims: Iterable[PlannedVictim], model: ClusterModel
) -> Preempt | None:
    """The nominations and evictions for a preemptor; None if a gang has changed, or the budgets do
    not allow all evictions together."""
    placed = [each for each in (_placed(p, model) for p in placements) if each is not None]
    evicted: list[list[KubePod]] = []
    lost = 0.0
    for victim in victims:
        gang = _current(victim.job, victim.version, model)
        if gang is None:
            return None
        numbers = victim.tasks or tuple(member.number for member in gang.bound)
        evicted.append([gang.members[number].pod for number in numbers])
        lost += victim.lost
    is_allowed = model.budgets.allow(pod for pods in evicted for pod in pods)
    if len(placed) < len(placements) or not is_allowed:
        return None
    preemptor = placed[0][0].name
    evictions = tuple(
        EvictPod(reference(pod), preemptor, checkpoint_wish(pods) is not None)
        for pods in evicted
        for pod in pods
    )
    nominations = tuple(bind for _, binds in placed for bind in binds)
    return Preempt(preemptor, nominations, evictions, lost)


def cleared_nominations(plan: Plan, model: ClusterModel) -> Iterator[ClearNomination]:
    """The gangs that a plan leaves pending although all their victims are gone, because other pods
    have taken the nodes. Without nominations the next plan may evict again."""
    for job in plan.reasons:
        gang = model.gangs.gangs.get(job.partition("#")[0])
        pending = () if gang is None or model.victims_of(gang) else gang.pending
        nominated = [m.pod for m in pending if m.pod.status.nominated_node_name]
        if gang is None or not nominated:
            continue
        if not isinstance(plan.reasons[job], why.WaitingForVictims):
            yield ClearNomination(gang.job, tuple(map(reference, nominated)))


def timed_out_rounds(
    model: ClusterModel, now: datetime, timeout: timedelta
) -> Iterator[TimeOutRound]:
    """The gangs whose last round of binds stopped half way, longer ago than the timeout."""
    for job in sorted(model.gangs.half_bound):
        gang = model.gangs.gangs[job]
        pods = half_bound(gang)
        bound = [at for pod in pods if (at := bound_at(pod)) is not None]
        if not bound or now - min(bound) < timeout:
            continue
        kept = [pod for pod in pods if pod.metadata.controller is None]
        yield TimeOutRound(
            gang.job, tuple(map(reference, [] if kept else pods)), tuple(map(reference, kept))
        )


def group_admissions(model: ClusterModel) -> Iterator[AdmitGroup | RefuseGroup]:
    """What PodGroups of Volcano without pods are answered: they are admitted if nothing about them
    is wrong and their minimum fits the limits of their queue."""
    for group in model.gangs.groups_without_pods():
        if group.key.family is not GangFamily.VOLCANO or group.phase not in ("", "Pending"):
            continue
        refusal = model.refusal_of_group(group)
        where = (group.key.namespace, group.key.name, group.uid)
        if refusal is None:
            yield AdmitGroup(*where)
        else:
            yield RefuseGroup(*where, refusal.kind, refusal.message)


# Why pods are pending


def reports_of(plan: Plan, model: ClusterModel) -> Iterator[PodReport]:
    """A report for every pod that the plan leaves pending."""
    # A running gang with pods above its minimum is not pending, but these pods are.
    for job in (*plan.reasons, *model.state.pending.growing):
        gang, reason = model.gangs.gangs.get(job.partition("#")[0]), plan.reasons.get(job)
        if gang is None or reason is None:
            continue
        kind, message = kind_of(reason), condition_message(reason, gang, model)
        _, _, number = job.partition("#")
        for member in gang.pending:
            if not number or member.number == int(number):
                yield PodReport(reference(member.pod), kind, message, gang.job)
