"""The volumes that pods claim: where they can be used, and what keeps their pods pending.

A claim that is bound has a volume, which may be usable on some nodes only. The scheduler does not
bind claims: a pod whose claim waits for its pod to be placed is not supported.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from phalanx.kube.objects.cluster import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from phalanx.kube.objects.pod import KubePod, NodeSelectorTerm
from phalanx.plan.model import NodeFacts

_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
#: Labels that older volumes and nodes have instead → the current ones.
_OLDER = {
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
}
_ZONE_LABELS = (_ZONE, _REGION, *_OLDER)
_ONE_POD = "ReadWriteOncePod"
#: Set when a claim and its volume refer to each other. A claim may name a volume before.
_BOUND = "pv.kubernetes.io/bind-completed"


class VolumeNodes(NamedTuple):
    """The nodes on which a bound volume can be used."""

    terms: tuple[NodeSelectorTerm, ...] | None = None  #: one must match; None: every node does
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()  #: label → values that the node may have

    def are_unrestricted(self) -> bool:
        return self.terms is None and not self.zones


class AttachedVolume(NamedTuple):
    driver: str
    handle: str


class PodVolumes(NamedTuple):
    """What the claims of a pod mean for its placement."""

    #: Why the pod cannot be placed, whatever is free; a sentence.
    obstacle: str | None = None
    is_supported: bool = True  #: False: the obstacle is a part that Phalanx does not support
    nodes: tuple[VolumeNodes, ...] = ()
    attached: tuple[AttachedVolume, ...] = ()
    exclusive: tuple[str, ...] = ()  #: claims that one pod at a time may use


_NO_VOLUMES = PodVolumes()


class VolumeIndex:
    """Claims, volumes and classes by name, as the cluster has them."""

    def __init__(
        self,
        claims: Mapping[str, PersistentVolumeClaim],
        volumes: Mapping[str, PersistentVolume],
        classes: Mapping[str, StorageClass],
    ) -> None:
        """Claims are given by `namespace/name`."""
        self._claims = claims
        self._volumes = volumes
        self._classes = classes

    def of(self, pod: KubePod) -> PodVolumes:
        """What the pod's claims mean for its placement; only the first obstacle is given."""
        names = list(claims_of(pod))
        if not names:
            return _NO_VOLUMES
        nodes: list[VolumeNodes] = []
        attached: list[AttachedVolume] = []
        exclusive: list[str] = []
        for name, is_ephemeral in names:
            key = f"{pod.metadata.namespace}/{name}"
            claim = self._claims.get(key)
            obstacle = _claim_obstacle(pod, name, claim, is_ephemeral=is_ephemeral)
            if claim is None or obstacle is not None:
                return PodVolumes(obstacle)
            if not claim.spec.volume_name or _BOUND not in claim.metadata.annotations:
                return self._unbound(name, claim)
            volume = self._volumes.get(claim.spec.volume_name)
            if volume is None:
                return PodVolumes(f"persistent volume {claim.spec.volume_name} does not exist")
            nodes.append(_nodes_of(volume))
            if volume.spec.csi is not None:
                csi = volume.spec.csi
                attached.append(AttachedVolume(csi.driver, csi.volume_handle))
            if _ONE_POD in claim.spec.access_modes:
                exclusive.append(key)
        return PodVolumes(
            nodes=tuple(each for each in nodes if not each.are_unrestricted()),
            attached=tuple(sorted(set(attached))),
            exclusive=tuple(sorted(set(exclusive))),
        )

    def _unbound(self, name: str, claim: PersistentVolumeClaim) -> PodVolumes:
        storage = self._classes.get(claim.spec.storage_class_name or "")
        if storage is not None and storage.volume_binding_mode == "WaitForFirstConsumer":
            return PodVolumes(
                f"claim {name} is not bound, and its storage class {storage.metadata.name} waits"
                " for the pod to be placed, which is not supported",
                is_supported=False,
            )
        return PodVolumes(f"claim {name} is not bound to a volume yet")


def claims_of(pod: KubePod) -> Iterator[tuple[str, bool]]:
    """The names of the claims that a pod uses, and whether the pod owns the claim."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def _claim_obstacle(
    pod: KubePod, name: str, claim: PersistentVolumeClaim | None, *, is_ephemeral: bool
) -> str | None:
    if claim is None:
        return f"claim {name} does not exist"
    metadata = claim.metadata
    if metadata.deletion_timestamp is not None:
        return f"claim {name} is being deleted"
    owners = {owner.uid for owner in metadata.owner_references if owner.controller}
    if is_ephemeral and pod.metadata.uid not in owners:
        return f"claim {name} belongs to another object"
    if claim.status.phase == "Lost":
        return f"claim {name} has lost its volume"
    return None


def _nodes_of(volume: PersistentVolume) -> VolumeNodes:
    affinity = volume.spec.node_affinity
    required = None if affinity is None else affinity.required
    labels = volume.metadata.labels
    zones = [
        (label, tuple(sorted(labels[label].split("__"))))
        for label in sorted(_ZONE_LABELS)
        if label in labels
    ]
    return VolumeNodes(None if required is None else required.node_selector_terms, tuple(zones))


def is_in_zones(node: NodeFacts, zones: tuple[tuple[str, tuple[str, ...]], ...]) -> bool:
    """Whether a node is in the zones of a volume. A node without zone labels is in all of them."""
    if not any(label in node.labels for label in _ZONE_LABELS):
        return True
    for label, values in zones:
        value = node.labels.get(label, node.labels.get(_OLDER.get(label, "")))
        if value not in values:
            return False
    return True


def attach_limits(node: CsiNode) -> dict[str, int]:
    """Driver → the number of volumes that can be attached to the node."""
    limits = {}
    for driver in node.spec.drivers or ():
        if driver.allocatable is not None and driver.allocatable.count is not None:
            limits[driver.name] = driver.allocatable.count
    return limits
