"""What the next plan means for a gang: where it starts, what it evicts, or why it stays pending and
what would help."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from phalanx.core import reasons as why
from phalanx.core.reasons import Reason
from phalanx.core.text import listed
from phalanx.core.time_units import Micros
from phalanx.kube.gangs.gang import KubeGang
from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.writes.reason_text import in_kubernetes, kind_of, reason_text
from phalanx.plan.decisions import Plan, PlannedVictim
from phalanx.plan.explain.share_rules import share_rule
from phalanx.plan.explain.whatif import (
    Alternative,
    Fewer,
    Forecast,
    Higher,
    Shorter,
    WithMoves,
    alternatives,
    forecast,
    remedy_text,
)

#: What would have to change; a gang with any other reason only needs time.
_REMEDIES: dict[type, str] = {
    why.QueueStopped: "set stopped of queue {queue} to false",
    why.WaitingForMembers: "create the missing pods, or lower the minimum",
    why.WaitingForGroup: "create the missing gangs, or remove them from the groups",
    why.NoNodeMatches: "add a node that has them, or change the pods",
    why.NoNodeSatisfies: "add a node that satisfies all rules, or change the rules of the pods",
    why.NeverFits: "add nodes with more {resources}, or request less",
    why.QueueLimit: "wait for gangs of queue {queue} to end, or raise its {unit} limit",
    why.BelowMinResources: "wait for {resources} to become free, or lower minResources",
    why.NotEnough: "wait for {resources} to become free, or add nodes",
    why.Gathering: "wait for the missing places, or add nodes",
    why.AboveMinimum: "wait for capacity to become free, or add nodes",
    why.Fragmented: "wait for a {domain} with enough free capacity, or request less per pod",
}


#: How reasons begin that time alone does not end.
_NEVER = "never fits: "


class VictimGang(msgspec.Struct, frozen=True):
    gang: str  #: namespace/name
    pods: tuple[str, ...]
    gpu_s: float  #: GPU-seconds of work lost


class GangForecast(msgspec.Struct, frozen=True):
    name: str  #: namespace/name of the gang, or of a pod that is placed by itself
    starts: bool  #: at once
    message: str
    placements: dict[str, str] = {}  #: pod → node
    victims: tuple[VictimGang, ...] = ()
    reason: str | None = None  #: in one word
    remedy: str | None = None
    alternatives: tuple[str, ...] = ()


def gang_forecasts(
    model: ClusterModel, made: Plan, gang: KubeGang, now: Micros
) -> Iterator[GangForecast]:
    """What a plan means for the pending pods of a gang: one forecast for all of them, or one for
    each once they are placed by themselves."""
    for job in sorted(model.pending_jobs(gang)):
        found = forecast(made, job)
        pending = model.state.pending.gangs.get(job)
        name = gang.name if pending is None else pending.name
        reason = found.reason
        tried: Sequence[Alternative] = ()
        if not found.places:
            tried = tuple(alternatives(model.state, now, job, reason, 0))
        yield GangForecast(
            name,
            found.starts_now,
            _message(model, gang, found),
            {_pod(gang, each.task): each.worker for each in found.places},
            tuple(_victim_view(model, victim) for victim in found.victims),
            None if reason is None else kind_of(reason),
            None if reason is None else _remedy(model, job, reason, now),
            tuple(_alternative(model, each) for each in tried),
        )


def _pod(gang: KubeGang, number: int) -> str:
    return gang.members[number].pod.metadata.name


def _message(model: ClusterModel, gang: KubeGang, found: Forecast) -> str:
    pods = _pods(len(found.places))
    reason = "" if found.reason is None else reason_text(found.reason, gang, model)
    if found.starts_now:
        return f"starts now: {pods} on {_listed_once(place.worker for place in found.places)}"
    if found.victims:
        victims = _victims_in_words([_victim_view(model, each) for each in found.victims])
        return f"evicts {victims}, and starts when the evicted pods have stopped"
    if found.gathers:
        return f"gathers {pods} and stays pending: {reason}"
    if found.places:
        return f"starts with {pods} when stopping pods have freed their places"
    if reason.startswith(_NEVER):
        return f"never starts: {reason.removeprefix(_NEVER)}"
    return f"stays pending: {reason}" if reason else "stays pending until the next plan"


def _remedy(model: ClusterModel, job: str, reason: Reason, now: Micros) -> str | None:
    if isinstance(reason, why.NotEnough | why.Fragmented | why.Gathering):
        rule = share_rule(model.state.at(now), job)
        if rule is not None:
            return in_kubernetes(f"{rule}; {rule.remedy}")
    if isinstance(reason, why.WaitingForMembers) and reason.uncounted:
        return "set its match policy to waiting-and-running, so that running pods count"
    template = _REMEDIES.get(type(reason))
    return None if template is None else in_kubernetes(remedy_text(template, reason))


def _alternative(model: ClusterModel, alternative: Alternative) -> str:
    match alternative:
        case Fewer(tasks, of):
            return f"with a minimum of {tasks} instead of {of}, the gang would start now"
        case Higher(priority, planned):
            victims = _victims_in_words([_victim_view(model, each) for each in planned])
            return f"with priority {priority}, the gang would evict {victims}"
        case Shorter() | WithMoves():
            raise AssertionError("bug: pods have no time limit, and are not moved")


def _victim_view(model: ClusterModel, victim: PlannedVictim) -> VictimGang:
    gang = model.gangs.gangs[victim.job]
    numbers = victim.tasks or tuple(member.number for member in gang.bound)
    return VictimGang(gang.name, tuple(_pod(gang, number) for number in numbers), victim.lost)


def _victims_in_words(victims: Sequence[VictimGang]) -> str:
    """`ml/train (4 pods), ml/tune (1 pod), losing 3.2 GPU-hours of work`."""
    names = listed([f"{victim.gang} ({_pods(len(victim.pods))})" for victim in victims])
    lost_s = sum(victim.gpu_s for victim in victims)
    work = f"{lost_s / 3600:.1f} GPU-hours" if lost_s >= 3600 else f"{lost_s:.0f} GPU-seconds"
    return names + (f", losing {work} of work" if lost_s >= 1 else "")


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _listed_once(names: Iterable[str]) -> str:
    return listed(list(dict.fromkeys(names)))
