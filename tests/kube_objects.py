"""Builders of Kubernetes objects for tests: what the API server would store, in short."""

from typing import Any

import msgspec

from phalanx.kube.objects.cluster import KubeNode
from phalanx.kube.objects.gang import KubePodGroup
from phalanx.kube.objects.pod import KubePod


def kube_pod(name: str = "p", namespace: str = "default", **fields: Any) -> KubePod:
    """A pod. `cpu`, `memory` and `gpu` are requests of its container; `node` is where it is bound;
    `labels`, `annotations` and `owner` are metadata; `phase` is its status; the rest is `spec`."""
    requests = {
        resource: str(fields.pop(key))
        for key, resource in (("cpu", "cpu"), ("memory", "memory"), ("gpu", "nvidia.com/gpu"))
        if key in fields
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": fields.pop("uid", f"uid-{namespace}-{name}"),
        "creationTimestamp": fields.pop("created", "2026-01-01T00:00:00Z"),
        "labels": fields.pop("labels", {}),
        "annotations": fields.pop("annotations", {}),
        "ownerReferences": fields.pop("owners", []),
    }
    if fields.pop("terminating", False):
        metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    status = {"phase": fields.pop("phase", "Pending"), **fields.pop("status", {})}
    spec = {
        "schedulerName": fields.pop("scheduler", "phalanx"),
        "nodeName": fields.pop("node", ""),
        "containers": [{"name": "main", "resources": {"requests": requests}}],
        **fields,
    }
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KubePod)


def kube_node(name: str = "n", **fields: Any) -> KubeNode:
    """A node. `cpu`, `memory`, `gpu` and `pods` are allocatable; the rest is `spec`."""
    allocatable = {
        resource: str(fields.pop(key, default))
        for key, resource, default in (
            ("cpu", "cpu", 8),
            ("memory", "memory", "32Gi"),
            ("gpu", "nvidia.com/gpu", 0),
            ("pods", "pods", 110),
        )
    }
    labels = {"kubernetes.io/hostname": name, **fields.pop("labels", {})}
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels}
    return msgspec.convert(
        {"metadata": metadata, "spec": fields, "status": {"allocatable": allocatable}}, KubeNode
    )


def kube_pod_group(name: str = "g", namespace: str = "default", **fields: Any) -> KubePodGroup:
    """A PodGroup. `labels` and `annotations` are metadata; the rest is `spec`."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-group-{namespace}-{name}",
        "creationTimestamp": fields.pop("created", "2026-01-01T00:00:00Z"),
        "labels": fields.pop("labels", {}),
        "annotations": fields.pop("annotations", {}),
    }
    return msgspec.convert({"metadata": metadata, "spec": fields}, KubePodGroup)
