"""Nodes, volumes, and the objects that a cluster's operators create."""

from phalanx.kube.objects.metadata import (
    ApiObject,
    ApiStruct,
    LabelSelector,
    ObjectCondition,
)
from phalanx.kube.objects.pod import NodeSelector, Quantities


class Taint(ApiStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""  #: `NoSchedule`, `PreferNoSchedule` or `NoExecute`


class KubeNodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False  #: the node is cordoned
    taints: tuple[Taint, ...] = ()


class KubeNodeStatus(ApiStruct, frozen=True):
    allocatable: Quantities = {}
    conditions: tuple[ObjectCondition, ...] = ()


class KubeNode(ApiObject, frozen=True):
    spec: KubeNodeSpec = KubeNodeSpec()
    status: KubeNodeStatus = KubeNodeStatus()


class KubeNamespace(ApiObject, frozen=True):
    """Only the metadata is read: labels for selectors, annotations for the queue."""


class PriorityClass(ApiObject, frozen=True):
    value: int = 0
    preemption_policy: str = "PreemptLowerPriority"


class BudgetSpec(ApiStruct, frozen=True):
    selector: LabelSelector | None = None


class BudgetStatus(ApiStruct, frozen=True):
    disruptions_allowed: int = 0
    conditions: tuple[ObjectCondition, ...] = ()


class PodDisruptionBudget(ApiObject, frozen=True):
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class CsiVolumeSource(ApiStruct, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class ClaimReference(ApiStruct, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(ApiStruct, frozen=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiStruct, frozen=True):
    storage_class_name: str = ""
    access_modes: tuple[str, ...] = ()
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiVolumeSource | None = None


class PersistentVolume(ApiObject, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    volume_name: str = ""  #: empty until the claim is bound
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(ApiObject, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class StorageClass(ApiObject, frozen=True):
    volume_binding_mode: str = "Immediate"


class AttachLimit(ApiStruct, frozen=True):
    count: int | None = None  #: without a count the driver has no limit


class CsiNodeDriver(ApiStruct, frozen=True):
    name: str = ""
    allocatable: AttachLimit | None = None


class CsiNodeSpec(ApiStruct, frozen=True):
    drivers: tuple[CsiNodeDriver, ...] | None = None  #: `null` if there is none


class CsiNode(ApiObject, frozen=True):
    """The volume drivers of the node of the same name."""

    spec: CsiNodeSpec = CsiNodeSpec()
