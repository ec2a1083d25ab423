"""A control plane on the loopback interface: etcd, kube-apiserver and, on demand, the others."""

import secrets
import shutil
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec
import yaml

from tests.kubernetes.certificates import SERVER_NAME, ClusterAuthority
from tests.kubernetes.server_process import ServerProcess, answers
from tests.ports import free_port

STAGES = Path(__file__).parent / "stages.yaml"
#: The nodes whose kubelet KWOK plays.
KWOK_NODES = "phalanx.test/kubelet=kwok"

#: Everything that replaces, counts or removes pods. No controller judges nodes; tests do.
_CONTROLLERS = (
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "statefulset-controller",
)


class ApiServer(msgspec.Struct, frozen=True):
    """How to reach an API server as its administrator."""

    folder: str
    url: str
    token: str

    @property
    def ca(self) -> Path:
        return Path(self.folder) / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        return Path(self.folder) / "admin.kubeconfig"


class ControlPlane:
    """etcd and kube-apiserver with their files in a folder of their own."""

    def __init__(self, binary: Path, folder: Path, *, audited: Sequence[str] = ()) -> None:
        """Requests of the users `audited` are written to `audit.log` in the folder."""
        self._binary = binary
        self._folder = folder
        self._audited = audited
        self._token = secrets.token_hex(16)
        folder.mkdir(parents=True)
        (folder / "tokens.csv").write_text(f'{self._token},admin,admin,"system:masters"\n')
        names = ("127.0.0.1", "localhost", SERVER_NAME)
        ClusterAuthority(folder, names)
        self.etcd, self._etcd_port = self._start_etcd()
        self._port = free_port()
        try:
            self.api_server = self._start_api_server()
        except BaseException:
            self.etcd.kill()
            raise
        _write_kubeconfig(self.address)

    @property
    def address(self) -> ApiServer:
        return ApiServer(str(self._folder), f"https://127.0.0.1:{self._port}", self._token)

    def stop(self) -> None:
        self.api_server.kill()  # nothing of it is needed, and a polite end takes seconds
        self.etcd.kill()
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)

    def restart_api_server(self) -> None:
        """Kill the API server, and start it on the same port."""
        self.api_server.kill()
        self.api_server = self._start_api_server()

    def _start_etcd(self) -> tuple[ServerProcess, int]:
        port, peers = free_port(), free_port()
        url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
        command = [str(self._binary), "etcd", "--unsafe-no-fsync", "--log-level=warn"]
        command += [f"--data-dir={self._folder / 'etcd'}"]
        command += [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
        command += [f"--listen-peer-urls={peer_url}", f"--initial-cluster=default={peer_url}"]
        command += [f"--initial-advertise-peer-urls={peer_url}"]
        process = ServerProcess(command, self._folder / "etcd.log")
        process.wait_until(lambda: answers(port))
        return process, port

    def _start_api_server(self) -> ServerProcess:
        folder = self._folder
        command = [
            *(str(self._binary), "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            *("--bind-address=127.0.0.1", f"--secure-port={self._port}"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
            *(
                f"--tls-cert-file={folder}/server.crt",
                f"--tls-private-key-file={folder}/server.key",
            ),
            *(f"--client-ca-file={folder}/ca.crt", f"--token-auth-file={folder}/tokens.csv"),
            *("--authorization-mode=RBAC", "--service-account-issuer=https://phalanx.test"),
            f"--service-account-key-file={folder}/tokens.pub",
            f"--service-account-signing-key-file={folder}/tokens.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            # Pods need no token here, and no node lifecycle controller would remove the taint.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--feature-gates=GenericWorkload=true,GangScheduling=true",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        ]
        if self._audited:
            (folder / "audit.yaml").write_text(yaml.safe_dump(_audit_policy(self._audited)))
            command += [f"--audit-policy-file={folder}/audit.yaml"]
            command += [f"--audit-log-path={folder}/audit.log", "--audit-log-mode=blocking"]
        process = ServerProcess(command, folder / "kube-apiserver.log")
        process.wait_until(self._is_ready)
        return process

    def _is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        request = Request(f"{self.address.url}/readyz")  # noqa: S310
        request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urlopen(request, context=context, timeout=5) as reply:  # noqa: S310
                status: int = reply.status
                return status == 200
        except (URLError, OSError):
            return False


def _audit_policy(users: Sequence[str]) -> dict[str, Any]:
    rules = [{"level": "Metadata", "users": list(users)}, {"level": "None"}]
    kind = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
    return {**kind, "omitStages": ["RequestReceived"], "rules": rules}


def start_controllers(binary: Path, api: ApiServer, folder: Path) -> ServerProcess:
    key = f"{api.folder}/tokens.key"
    command = [str(binary), "kube-controller-manager", f"--kubeconfig={api.kubeconfig}"]
    command += [f"--controllers={','.join(_CONTROLLERS)}", "--leader-elect=false"]
    command += ["--secure-port=0", f"--service-account-private-key-file={key}"]
    command += ["--kube-api-qps=500", "--kube-api-burst=1000"]
    return ServerProcess(command, folder / "kube-controller-manager.log")


def start_scheduler(
    binary: Path, api: ApiServer, folder: Path, *, gates: Sequence[str] = ()
) -> ServerProcess:
    """kube-scheduler under the name `default-scheduler`."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(api.kubeconfig), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False},
    }
    (folder / "kube-scheduler.yaml").write_text(yaml.safe_dump(config))
    command = [str(binary), "kube-scheduler", f"--config={folder / 'kube-scheduler.yaml'}"]
    command += ["--secure-port=0", *([f"--feature-gates={','.join(gates)}"] if gates else ())]
    return ServerProcess(command, folder / "kube-scheduler.log")


def start_kwok(binary: Path, api: ApiServer, folder: Path) -> ServerProcess:
    command = [str(binary), f"--kubeconfig={api.kubeconfig}", f"--config={STAGES}"]
    command += [f"--manage-nodes-with-label-selector={KWOK_NODES}", "--manage-all-nodes=false"]
    command += ["--node-lease-duration-seconds=0"]
    return ServerProcess(command, folder / "kwok.log")


def _write_kubeconfig(api: ApiServer) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "clusters": [
            {
                "name": "test",
                "cluster": {"server": api.url, "certificate-authority": str(api.ca)},
            }
        ],
        "users": [{"name": "admin", "user": {"token": api.token}}],
    }
    api.kubeconfig.write_text(yaml.safe_dump(config))
