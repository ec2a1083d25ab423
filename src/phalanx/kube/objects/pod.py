"""Pods, with the fields that decide where and with which others they run."""

from datetime import datetime

import msgspec

from phalanx.kube.objects.metadata import (
    ApiObject,
    ApiStruct,
    LabelSelector,
    ObjectCondition,
    SelectorRequirement,
)

#: Resource → quantity as the API server writes it, for example `{"cpu": "500m"}`.
Quantities = dict[str, str]


class ResourceClaimReference(ApiStruct, frozen=True):
    name: str = ""
    request: str = ""


class ResourceRequirements(ApiStruct, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}
    claims: tuple[ResourceClaimReference, ...] = ()


class ContainerPort(ApiStruct, frozen=True):
    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class KubeContainer(ApiStruct, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    #: `Always` on an init container that runs beside the containers (a sidecar).
    restart_policy: str = ""


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that must all hold. The empty term matches no node."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms of which one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredNodeTerm(ApiStruct, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredNodeTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(ApiStruct, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None  #: without a selector the term matches no pod
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class PreferredPodTerm(ApiStruct, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(ApiStruct, frozen=True):
    """`podAffinity` or `podAntiAffinity`."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredPodTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    key: str = ""  #: empty with operator `Exists`: every taint
    operator: str = "Equal"
    value: str = ""
    effect: str = ""  #: empty: every effect


class SpreadConstraint(ApiStruct, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class ClaimVolume(ApiStruct, frozen=True):
    claim_name: str = ""


class EphemeralVolume(ApiStruct, frozen=True):
    """A volume whose claim is named `POD-VOLUME` and owned by the pod."""


class InlineCsiVolume(ApiStruct, frozen=True):
    driver: str = ""


class PodVolume(ApiStruct, frozen=True):
    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None
    ephemeral: EphemeralVolume | None = None
    csi: InlineCsiVolume | None = None


class SchedulingGate(ApiStruct, frozen=True):
    name: str = ""


class SchedulingGroup(ApiStruct, frozen=True):
    """The pod's PodGroup of `scheduling.k8s.io`."""

    pod_group_name: str = ""


class WorkloadReference(ApiStruct, frozen=True):
    """The pod's Workload in Kubernetes 1.35; later versions have `schedulingGroup`."""

    name: str = ""
    pod_group: str = ""


class PodResourceClaim(ApiStruct, frozen=True):
    """A claim of dynamic resource allocation."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(ApiStruct, frozen=True):
    scheduler_name: str = "default-scheduler"
    node_name: str = ""  #: empty until the pod is bound
    containers: tuple[KubeContainer, ...] = ()
    init_containers: tuple[KubeContainer, ...] = ()
    resources: ResourceRequirements | None = None  #: of the pod as a whole
    overhead: Quantities = {}
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    volumes: tuple[PodVolume, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()
    restart_policy: str = "Always"


class ContainerStatus(ApiStruct, frozen=True):
    """What a container was given, which differs from its request during a resize."""

    name: str = ""
    allocated_resources: Quantities = {}
    resources: ResourceRequirements | None = None


class PodStatus(ApiStruct, frozen=True):
    phase: str = "Pending"  #: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: datetime | None = None
    conditions: tuple[ObjectCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: Quantities = {}  #: of the pod as a whole
    resources: ResourceRequirements | None = None  #: of the pod as a whole


class KubePod(ApiObject, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None
