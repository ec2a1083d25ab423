"""What `kubectl apply -k deploy/kubernetes` installs, applied to an API server without kubectl, and
schedulers that run as the Deployment says, with the token of its service account."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from phalanx.kube.api.client import ApiClient
from tests.kubernetes.binaries import ROOT
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.server_process import ServerProcess, free_port

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
    for each in installed_objects():
        await apply(client, each)


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


class InstalledScheduler:
    """The container of the Deployment as a process of this machine."""

    def __init__(self, kubeconfig: Path, identity: str, log: Path) -> None:
        [container] = installed("Deployment")["spec"]["template"]["spec"]["containers"]
        self.port = free_port()
        args = [arg for arg in container["args"] if not arg.startswith("--listen=")]
        args += [f"--listen=127.0.0.1:{self.port}", "--kubeconfig", str(kubeconfig)]
        command = [sys.executable, "-m", "phalanx.cli", *args, "--identity", identity]
        self.log = log
        self.process = ServerProcess(command, log)

    async def get(self, path: str) -> str:
        """The answer to a request; empty if there is none, or it is a failure."""
        with suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
            ):
                return await answer.text() if answer.status == 200 else ""
        return ""

    async def leads(self) -> bool:
        return "phalanx_kube_leader 1.0" in await self.get("/metrics")
