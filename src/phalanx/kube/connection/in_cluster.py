"""The connection of a pod to the API server of its own cluster."""

import os
from pathlib import Path

from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import ConfiguredCredentials, PemSource
from phalanx.kube.connection.errors import ConnectionConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def is_in_cluster(folder: Path = SERVICE_ACCOUNT) -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and (folder / "token").exists()


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> ClusterConnection:
    """The connection with the token of the pod's service account, which the kubelet replaces."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConnectionConfigError(
            "KUBERNETES_SERVICE_HOST is not set; use --kubeconfig outside of a cluster"
        )
    if ":" in host:
        host = f"[{host}]"
    namespace = folder / "namespace"
    return ClusterConnection(
        server=f"https://{host}:{port}",
        credentials=ConfiguredCredentials(token_file=folder / "token"),
        authority=PemSource(path=folder / "ca.crt"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )
