"""Nodes whose kubelet has refused a pod. Pods of the same gang, or of the same controller, are kept
from such a node for a while, for longer each time."""

from typing import NamedTuple

from phalanx.core.time_units import SECOND, Micros
from phalanx.kube.gang import KubeGang
from phalanx.kube.objects.pod import KubePod

FIRST_PAUSE: Micros = 10 * SECOND
LONGEST_PAUSE: Micros = 300 * SECOND
#: After so long without a refusal the pauses start over.
_FORGIVEN: Micros = 1800 * SECOND


class _Refusal(NamedTuple):
    until: Micros
    pause: Micros


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

    def add(self, gang: KubeGang, pod: KubePod, now: Micros) -> str | None:
        """Note that the node of a pod has refused it; the gang or the controller that is kept from
        the node, None if no other pod replaces this one."""
        owner = owner_of(gang, pod)
        if owner is None:
            return None
        nodes = self._refusals.setdefault(owner, {})
        last = nodes.get(pod.spec.node_name)
        pause = FIRST_PAUSE if last is None else min(2 * last.pause, LONGEST_PAUSE)
        nodes[pod.spec.node_name] = _Refusal(now + pause, pause)
        return owner

    def of(self, gang: KubeGang, pod: KubePod) -> tuple[str, ...]:
        """The nodes on which a pod of a gang is not placed now."""
        nodes = self._refusals.get(owner_of(gang, pod) or "", {}) if self._refusals else {}
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


def owner_of(gang: KubeGang, pod: KubePod) -> str | None:
    """The gang, or the controller that replaces a pod without a gang."""
    if not gang.is_alone:
        return gang.job
    controller = pod.metadata.controller
    return None if controller is None else controller.uid
