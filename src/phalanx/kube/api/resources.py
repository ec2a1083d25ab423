"""The kinds of objects that are read and written, with their paths."""

from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from phalanx.kube.objects.cluster import (
    CsiNode,
    KubeNamespace,
    KubeNode,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    StorageClass,
)
from phalanx.kube.objects.gang import KubePodGroup, KubeQueue
from phalanx.kube.objects.lease import Lease
from phalanx.kube.objects.metadata import ApiObject
from phalanx.kube.objects.pod import KubePod

T = TypeVar("T", bound=ApiObject)


class Resource(NamedTuple, Generic[T]):
    """A kind of object in one version of its API group. The core group has no name."""

    group: str
    version: str
    plural: str
    type: type[T]
    is_namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the collection, in all namespaces if none is given, or of one object."""
        parts = ["/apis", self.group] if self.group else ["/api"]
        parts.append(self.version)
        if namespace and self.is_namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


#: API group of Volcano.
VOLCANO = "scheduling.volcano.sh"

PODS = Resource("", "v1", "pods", KubePod)
NODES = Resource("", "v1", "nodes", KubeNode, is_namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", KubeNamespace, is_namespaced=False)
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", PersistentVolume, is_namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", PersistentVolumeClaim)
STORAGE_CLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", StorageClass, is_namespaced=False
)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", CsiNode, is_namespaced=False)
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", PodDisruptionBudget)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", PriorityClass, is_namespaced=False
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", Lease)


class GroupApi(NamedTuple):
    """The API that PodGroups of a dialect are read from."""

    resource: Resource[KubePodGroup]
    has_status: bool  #: the status is written to `/status`


def pod_groups(group: str, version: str) -> Resource[KubePodGroup]:
    """PodGroups of a dialect, in the version that the cluster serves."""
    return Resource(group, version, "podgroups", KubePodGroup)


def queues(group: str, version: str) -> Resource[KubeQueue]:
    return Resource(group, version, "queues", KubeQueue, is_namespaced=False)
