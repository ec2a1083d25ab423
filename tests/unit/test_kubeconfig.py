"""Which cluster and which user kubeconfig files name, and the errors for those that name none."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.kube.connection import in_cluster as pod_files
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import Credential
from phalanx.kube.connection.errors import ConnectionConfigError
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.connection.proxy import environment_proxy

SERVER = "https://10.0.0.1:6443"


def kubeconfig(
    folder: Path,
    name: str = "config",
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    **others: Any,
) -> Path:
    """A file with one context, one cluster and one user, all called `c`."""
    content = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "c", "user": user or {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "ml"}}],
        **others,
    }
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return path


async def credential(connection: ClusterConnection) -> Credential:
    return await connection.credentials.current()


def refused(path: Path) -> str:
    with pytest.raises(ConnectionConfigError) as error:
        find_connection(path)
    return str(error.value)


async def test_the_current_context_is_used_unless_another_is_named(tmp_path: Path) -> None:
    path = kubeconfig(
        tmp_path,
        user={"token": "t"},
        contexts=[
            {"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "ml"}},
            {"name": "other", "context": {"cluster": "c", "user": "c"}},
        ],
    )
    connection = find_connection(path)
    assert (connection.server, connection.namespace) == (SERVER, "ml")
    assert (await credential(connection)).authorization == "Bearer t"
    assert find_connection(path, "other").namespace == "default"


async def test_of_several_files_the_first_one_with_a_name_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [{"name": "c", "user": {"token": "second"}}, {"name": "d", "user": {"token": "d"}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "d"}}]
    contexts.append({"name": "d", "context": {"cluster": "c", "user": "d"}})
    first = kubeconfig(tmp_path / "a", user={"tokenFile": "token"})
    (tmp_path / "a" / "token").write_text("first\n")
    second = kubeconfig(tmp_path / "b", users=users, contexts=contexts)
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", f"{missing}:{first}:{second}")
    assert (await credential(find_connection(None))).authorization == "Bearer first"
    assert (await credential(find_connection(None, "d"))).authorization == "Bearer d"
    # A file that is given by name is used alone.
    assert (await credential(find_connection(second, "c"))).authorization == "Bearer d"


async def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path) -> None:
    connection = find_connection(kubeconfig(tmp_path, user={"tokenFile": "t", "token": "unused"}))
    (tmp_path / "t").write_text("old")
    old = await credential(connection)
    (tmp_path / "t").write_text("new\n")
    assert (await credential(connection)).authorization == "Bearer old"  # for a minute
    assert (await connection.credentials.renew(old)).authorization == "Bearer new"
    (tmp_path / "t").unlink()
    # A file that is gone for a moment does not take the last token away.
    assert (await connection.credentials.renew(Credential("new"))).authorization == "Bearer new"


async def test_inline_certificates_count_before_files(tmp_path: Path) -> None:
    inline = base64.b64encode(b"inline").decode()
    (tmp_path / "key").write_text("key of the file")
    user = {"client-certificate-data": inline, "client-certificate": "x", "client-key": "key"}
    connection = find_connection(kubeconfig(tmp_path, user=user))
    found = await credential(connection)
    assert (found.certificate, found.key) == (b"inline", b"key of the file")


def test_impersonation_becomes_headers(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "ann",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"Acme.com/Project": ["x"]},
    }
    assert find_connection(kubeconfig(tmp_path, user=user)).impersonation == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme.com%2Fproject", "x"),
    )


@pytest.mark.parametrize(
    ("user", "cluster", "reason"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider gcp, which Kubernetes removed"),
        ({"client-certificate-data": "eA=="}, {}, "client certificate without its key"),
        ({"client-key-data": "%%", "client-certificate": "x"}, {}, "is not base64"),
        ({"as-groups": ["a"]}, {}, "without as"),
        (
            {"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}},
            {},
            "use a plugin that speaks client.authentication.k8s.io/v1",
        ),
        (
            {
                "exec": {
                    "command": "x",
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "interactiveMode": "Always",
                }
            },
            {},
            "always asks questions",
        ),
        ({}, {"server": "10.0.0.1:6443"}, "write a URL such as https://"),
        ({}, {"proxy-url": "socks5://127.0.0.1:1"}, "use a proxy with http:// or https://"),
        (
            {},
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca"},
            "remove one of them",
        ),
        ({"token": ["t"]}, {}, "is not a kubeconfig file: Expected `str`, got `array`"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_cure(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], reason: str
) -> None:
    assert reason in refused(kubeconfig(tmp_path, user=user, cluster=cluster))


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"current-context": "d"}, "has no context d; it has: c"),
        ({"current-context": ""}, "has no current context"),
        ({"clusters": []}, "names the cluster c, which is not there"),
        ({"users": []}, "names the user c, which is not there"),
    ],
)
def test_a_missing_part_is_named(tmp_path: Path, others: dict[str, Any], reason: str) -> None:
    assert reason in refused(kubeconfig(tmp_path, **others))


def test_a_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "x") == f"cannot read {tmp_path / 'x'}: No such file or directory"
    (tmp_path / "y").write_text("a: [")
    assert "is not YAML" in refused(tmp_path / "y")


async def test_without_a_file_a_pod_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConnectionConfigError, match="use --kubeconfig FILE or set KUBECONFIG"):
        find_connection(None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("of the pod")
    (tmp_path / "namespace").write_text("phalanx")
    assert pod_files.is_in_cluster(tmp_path)
    connection = pod_files.in_cluster(tmp_path)
    assert (connection.server, connection.namespace) == ("https://[fd00::1]:6443", "phalanx")
    assert (await credential(connection)).authorization == "Bearer of the pod"


@pytest.mark.parametrize(
    ("exceptions", "is_used"),
    [
        ("", True),
        ("10.0.0.0/8", False),
        ("10.0.0.1", False),
        ("*", False),
        ("11.0.0.0/8,.example.org", True),
    ],
)
def test_the_proxy_of_the_environment_has_exceptions(
    monkeypatch: pytest.MonkeyPatch, exceptions: str, is_used: bool
) -> None:
    monkeypatch.setenv("https_proxy", "proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", exceptions)
    proxy = "http://proxy.example.org:3128"
    assert environment_proxy(SERVER) == (proxy if is_used else None)
    assert environment_proxy("https://127.0.0.1:6443") is None
    monkeypatch.setenv("no_proxy", ".example.org")
    assert environment_proxy("https://api.example.org") is None
