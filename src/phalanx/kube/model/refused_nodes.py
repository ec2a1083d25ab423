"""Nodes whose kubelet has refused a pod. Pods of the same gang, or of the same controller, are kept
from such a node for a while, for longer each time."""

from typing import NamedTuple

from phalanx.core.time_units import SECOND, Micros
from phalanx.kube.gangs.gang import micros
from phalanx.kube.gangs.gang_terms import pod_declaration
from phalanx.kube.objects.pod import KubePod
from phalanx.kube.writes.rounds import bound_at

#: A kubelet refuses a pod soon after its bind. A pod that was bound before is not looked at.
_SOON: Micros = 300 * SECOND
FIRST_PAUSE: Micros = 10 * SECOND
LONGEST_PAUSE: Micros = 300 * SECOND
#: After so long without a refusal the pauses start over.
_FORGIVEN: Micros = 1800 * SECOND


class _Refusal(NamedTuple):
    until: Micros
    pause: Micros
    uid: str  #: the pod


def is_refusal(pod: KubePod) -> bool:
    """Whether the kubelet has refused the pod, so that it never ran."""
    reason = pod.status.reason
    is_refused = reason.startswith("OutOf") or reason == "UnexpectedAdmissionError"
    return pod.status.phase == "Failed" and is_refused


class RefusedNodes:
    def __init__(self) -> None:
        self._now: Micros = 0
        #: By gang or controller, and by node.
        self._refusals: dict[str, dict[str, _Refusal]] = {}

    def add(self, pod: KubePod, now: Micros) -> str | None:
        """Note that the node of a pod has refused it; the gang or the controller that is kept from
        the node, None if no other pod replaces this one or the refusal is known."""
        owner = owner_of(pod)
        if owner is None or now - micros(bound_at(pod)) > _SOON:
            return None
        nodes = self._refusals.setdefault(owner, {})
        last = nodes.get(pod.spec.node_name)
        if last is not None and last.uid == pod.metadata.uid:
            return None
        pause = FIRST_PAUSE if last is None else min(2 * last.pause, LONGEST_PAUSE)
        nodes[pod.spec.node_name] = _Refusal(now + pause, pause, pod.metadata.uid)
        return owner

    def of(self, pod: KubePod) -> tuple[str, ...]:
        """The nodes on which a pod is not placed now."""
        nodes = self._refusals.get(owner_of(pod) or "", {}) if self._refusals else {}
        return tuple(sorted(name for name, each in nodes.items() if self._now < each.until))

    def advance(self, now: Micros) -> bool:
        """Set the time; whether a pause has ended. Refusals of long ago are forgotten."""
        has_ended, before, self._now = False, self._now, now
        for owner, nodes in [*self._refusals.items()]:
            for name, each in [*nodes.items()]:
                has_ended |= before < each.until <= now
                if each.until + _FORGIVEN < now:
                    del nodes[name]
            if not nodes:
                del self._refusals[owner]
        return has_ended


def owner_of(pod: KubePod) -> str | None:
    """The gang that a pod names, or the controller that replaces a pod without a gang."""
    declared = pod_declaration(pod)
    if declared is not None:
        return declared.key.job
    controller = pod.metadata.controller
    return None if controller is None else controller.uid
