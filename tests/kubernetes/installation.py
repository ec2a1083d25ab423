"""What `kubectl apply -k deploy/kubernetes` installs, applied to an API server without kubectl, and
schedulers that run as the Deployment says, with the token of its service account."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from phalanx.kube.api.client import ApiClient
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.binaries import ROOT
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.scheduler_process import SchedulerProcess

MANIFESTS = ROOT / "deploy" / "kubernetes"
NAMESPACE, ACCOUNT = "phalanx-system", "phalanx-scheduler"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"

#: kind → plural, and whether it is namespaced.
_PLURALS = {
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "CustomResourceDefinition": ("customresourcedefinitions", False),
    "Deployment": ("deployments", True),
    "Job": ("jobs", True),
    "Namespace": ("namespaces", False),
    "Pod": ("pods", True),
    "PodDisruptionBudget": ("poddisruptionbudgets", True),
    "PodGroup": ("podgroups", True),
    "Queue": ("queues", False),
    "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
    "Service": ("services", True),
    "ServiceAccount": ("serviceaccounts", True),
}


def installed_objects() -> list[dict[str, Any]]:
    """The objects of the kustomization, in its order."""
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    files = [MANIFESTS / name for name in kustomization["resources"]]
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def installed(kind: str) -> dict[str, Any]:
    """The one object of a kind."""
    [found] = [each for each in installed_objects() if each["kind"] == kind]
    return found


async def apply(client: ApiClient, given: dict[str, Any], **params: str) -> None:
    """Apply an object on the server's side; a field that it does not know is an error."""
    plural, is_namespaced = _PLURALS[given["kind"]]
    group = given["apiVersion"]
    metadata = given["metadata"]
    parts = ["/apis" if "/" in group else "/api", group]
    if is_namespaced:
        parts += ["namespaces", metadata["namespace"]]
    await client.request(
        "PATCH",
        "/".join([*parts, plural, metadata["name"]]),
        given,
        params={"fieldManager": "install", "fieldValidation": "Strict", **params},
        content_type="application/apply-patch+yaml",
    )


async def install(client: ApiClient) -> None:
    """Apply everything, and wait until the scheduler has its rights."""
    for each in installed_objects():
        await apply(client, each)
    await until_allowed(client, USER, "list", "pods")


async def until_allowed(client: ApiClient, user: str, verb: str, resource: str) -> None:
    """Wait until a user has a right in all namespaces: the API server takes over a new binding a
    moment after it was created."""
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = {"spec": {"user": user, "resourceAttributes": {"verb": verb, "resource": resource}}}

    async def is_allowed() -> bool:
        answer = msgspec.json.decode(await client.request("POST", path, review))
        return bool(answer["status"]["allowed"])

    await eventually(is_allowed, PATIENCE_S)


async def account_kubeconfig(client: ApiClient, api: ApiServer, *, url: str = "") -> Path:
    """A kubeconfig with a token of the scheduler's service account; `url` is a proxy's."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = msgspec.json.decode(await client.request("POST", path, request))
    cluster = {"server": url} if url else {"server": api.url, "certificate-authority": str(api.ca)}
    config = {
        "current-context": "scheduler",
        "contexts": [
            {
                "name": "scheduler",
                "context": {"cluster": "test", "user": ACCOUNT, "namespace": NAMESPACE},
            }
        ],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": ACCOUNT, "user": {"token": answer["status"]["token"]}}],
    }
    file = Path(api.folder) / f"scheduler{'-proxy' if url else ''}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def installed_scheduler(kubeconfig: Path, identity: str, log: Path) -> SchedulerProcess:
    """The container of the Deployment as a process of this machine."""
    [container] = installed("Deployment")["spec"]["template"]["spec"]["containers"]
    words = [arg for arg in container["args"] if not arg.startswith("--listen=")]
    return SchedulerProcess([*words, "--kubeconfig", str(kubeconfig)], identity, log)
