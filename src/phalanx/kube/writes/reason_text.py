"""Why a pod is pending, as people read it: the reason of its condition, and the message."""

from collections.abc import Sequence

from phalanx.core import reasons as why
from phalanx.core.reasons import Reason
from phalanx.core.text import listed, plural, reworded
from phalanx.kube.gangs.gang import KubeGang, MemberState
from phalanx.kube.gangs.gang_translation import NOT_READY, QUEUE_LIMIT
from phalanx.kube.model.cluster_model import ClusterModel

#: The cluster autoscaler adds nodes for pods with this reason, and only for them.
UNSCHEDULABLE = "Unschedulable"
WAITING_FOR_VICTIMS = "WaitingForVictims"
#: What the nouns of the planner's sentences are called in Kubernetes.
_WORDS = {"task": "pod", "worker": "node"}
#: The most victims that a message names.
_NAMED_VICTIMS = 3


def kind_of(reason: Reason) -> str:
    """The reason of a condition, in one word. `Unschedulable` only if more nodes would help."""
    match reason:
        case why.NotSchedulable(kind):
            return kind
        case why.QueueLimit() | why.QueueQuota():
            return QUEUE_LIMIT
        case why.WaitingForVictims():
            return WAITING_FOR_VICTIMS
        case (
            why.NotEnough()
            | why.Fragmented()
            | why.NeverFits()
            | why.NoNodeMatches()
            | why.NoNodeSatisfies()
            | why.HeldBack()
            | why.BelowMinResources()
            | why.Gathering()
            | why.AboveMinimum()
        ):
            return UNSCHEDULABLE
    return NOT_READY


def condition_message(reason: Reason, gang: KubeGang, model: ClusterModel) -> str:
    """The message of the condition of the gang's pending pods."""
    text = reason_text(reason, gang, model)
    if gang.refused:
        text += f"; not tried on {listed(gang.refused)}, whose kubelet refused such a pod"
    return text if gang.is_alone else f"gang {gang.name}: {text}"


def reason_text(reason: Reason, gang: KubeGang, model: ClusterModel) -> str:
    """The sentence of a reason, about pods and nodes."""
    match reason:
        case why.NotSchedulable(message=message):
            return message
        case why.WaitingForVictims(tasks):
            return _victims_text(tasks, model)
        case why.NoNodeSatisfies():
            return model.unmet_rules(gang) or str(reason)
        case why.WaitingForMembers():
            return _members_text(reason, gang)
        case why.WaitingForGroup(missing):
            have = "has" if len(missing) == 1 else "have"
            return f"its group is incomplete: {listed(missing)} {have} no pods yet"
    text = in_kubernetes(str(reason)).replace("(min_resources)", "(minResources)")
    return text.replace("each pod", "the pod") if gang.is_alone else text


def in_kubernetes(sentence: str) -> str:
    """A sentence of the planner, about pods and nodes."""
    return reworded(sentence, _WORDS)


def _members_text(reason: why.WaitingForMembers, gang: KubeGang) -> str:
    if reason.uncounted:
        return (
            f"only {reason.seen} of {reason.of} pods are pending, and the match policy"
            f" {gang.terms.match} does not count the {reason.uncounted} running or done"
        )
    gated = [m.pod for m in gang.of(MemberState.BLOCKED) if m.pod.spec.scheduling_gates]
    if gated:
        gates = sorted({gate.name for pod in gated for gate in pod.spec.scheduling_gates})
        have = "has" if len(gated) == 1 else "have"
        return (
            f"{reason.seen} of {reason.of} pods can be placed; {plural(len(gated), 'pod')} {have}"
            f" the scheduling gate{'s' * (len(gates) > 1)} {listed(gates)}; the controller that set"
            " a gate removes it"
        )
    exist = "exists" if reason.seen == 1 else "exist"
    return f"{reason.seen} of {reason.of} pods {exist}; the others have not been created"


def _victims_text(tasks: Sequence[str], model: ClusterModel) -> str:
    """`starts when 5 preempted pods of gang ml/train have stopped: ml/train-0, ml/train-1,
    ml/train-2 and 2 more`."""
    pods = sorted(model.pod_name(task) for task in tasks)
    jobs = dict.fromkeys(task.rpartition(".")[0] for task in tasks)
    gangs = [model.gangs.gangs.get(job) for job in jobs]
    names = sorted(gang.name for gang in gangs if gang is not None and not gang.is_alone)
    of_gangs = f" of gang{'s' * (len(names) > 1)} {listed(names, 3)}" if names else ""
    more = len(pods) - _NAMED_VICTIMS
    named = ", ".join(pods[:_NAMED_VICTIMS]) + (f" and {more} more" if more > 0 else "")
    have = "has" if len(pods) == 1 else "have"
    return f"starts when {plural(len(pods), 'preempted pod')}{of_gangs} {have} stopped: {named}"
