"""Kubeconfig files: several are merged, and relative paths start at the file that has them."""

import base64
import binascii
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import yaml

from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import (
    ConfiguredCredentials,
    Credentials,
    PemSource,
    basic_credential,
)
from phalanx.kube.connection.errors import ConnectionConfigError
from phalanx.kube.connection.exec_plugin import ExecConfig, ExecCredentials
from phalanx.kube.connection.in_cluster import in_cluster, is_in_cluster
from phalanx.kube.connection.proxy import checked_proxy, environment_proxy

T = TypeVar("T")


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: Any = None


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: ExecConfig | None = None
    auth_provider: dict[str, Any] | None = None
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_uid: str = msgspec.field(default="", name="as-uid")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    impersonate_extra: dict[str, list[str]] | None = msgspec.field(
        default=None, name="as-user-extra"
    )


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class _Located(NamedTuple, Generic[T]):
    """An entry, and the folder that its relative paths start from."""

    value: T
    folder: Path


class Kubeconfig:
    """The merged content of kubeconfig files: of entries with one name, the first one counts."""

    def __init__(self, paths: Sequence[Path], *, must_exist: bool) -> None:
        self._sources = ", ".join(str(path) for path in paths)
        self.current_context = ""
        self._clusters: dict[str, _Located[_Cluster]] = {}
        self._users: dict[str, _Located[_User]] = {}
        self._contexts: dict[str, _Context] = {}
        for path in paths:
            if must_exist or path.exists():
                self._merge(_read(path), path.absolute().parent)

    def _merge(self, file: _File, folder: Path) -> None:
        self.current_context = self.current_context or file.current_context or ""
        for cluster in file.clusters or ():
            self._clusters.setdefault(cluster.name, _Located(cluster.cluster, folder))
        for user in file.users or ():
            self._users.setdefault(user.name, _Located(user.user or _User(), folder))
        for context in file.contexts or ():
            self._contexts.setdefault(context.name, context.context)

    @property
    def is_empty(self) -> bool:
        return not (self._clusters or self._contexts or self.current_context)

    def connection(self, context_name: str | None = None) -> ClusterConnection:
        """The connection of a context, by default the current one. Raises ConnectionConfigError."""
        name = context_name or self.current_context
        if not name:
            raise self._error("has no current context; set one with `kubectl config use-context`")
        context = self._contexts.get(name)
        if context is None:
            known = ", ".join(sorted(self._contexts)) or "none"
            raise self._error(f"has no context {name}; it has: {known}")
        located = self._clusters.get(context.cluster)
        if located is None:
            raise self._error(
                f"context {name} names the cluster {context.cluster}, which is not there"
            )
        user = self._users.get(context.user)
        if user is None and context.user:
            raise self._error(f"context {name} names the user {context.user}, which is not there")
        user = user or _Located(_User(), located.folder)
        cluster, owner = located.value, f"cluster {context.cluster}"
        server = self._server(cluster, owner)
        proxy = checked_proxy(cluster.proxy_url, owner) if cluster.proxy_url else None
        return ClusterConnection(
            server=server,
            credentials=_credentials(context.user, user, located),
            authority=_authority(located, owner),
            skip_verify=cluster.insecure_skip_tls_verify,
            tls_server_name=cluster.tls_server_name or None,
            proxy=proxy or environment_proxy(server),
            impersonation=_impersonation(user.value, context.user),
            namespace=context.namespace or "default",
        )

    def _server(self, cluster: _Cluster, owner: str) -> str:
        parts = urlsplit(cluster.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise self._error(
                f"{owner} has the server {cluster.server!r}; write a URL such as https://10.0.0.1:6443"
            )
        return cluster.server.rstrip("/")

    def _error(self, what: str) -> ConnectionConfigError:
        return ConnectionConfigError(f"{self._sources}: {what}")


def find_connection(kubeconfig: Path | None, context: str | None = None) -> ClusterConnection:
    """The connection that the user means, in the order of kubectl: the given file, `$KUBECONFIG`,
    `~/.kube/config`, the pod's own cluster. Raises ConnectionConfigError."""
    if kubeconfig is not None:
        return Kubeconfig([kubeconfig], must_exist=True).connection(context)
    named = [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    merged = Kubeconfig(named or [Path.home() / ".kube" / "config"], must_exist=False)
    if not merged.is_empty or context is not None:
        return merged.connection(context)
    if is_in_cluster():
        return in_cluster()
    where = ", ".join(str(path) for path in named) or "~/.kube/config"
    raise ConnectionConfigError(
        f"no cluster is configured: {where} is missing or empty, and this is not a pod; use"
        " --kubeconfig FILE or set KUBECONFIG"
    )


def _read(path: Path) -> _File:
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConnectionConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConnectionConfigError(f"{path} is not YAML: {error}") from error
    try:
        return msgspec.convert(document if document is not None else {}, _File)
    except msgspec.ValidationError as error:
        raise ConnectionConfigError(f"{path} is not a kubeconfig file: {error}") from error


def _authority(located: _Located[_Cluster], owner: str) -> PemSource:
    cluster = located.value
    if cluster.insecure_skip_tls_verify and (
        cluster.certificate_authority or cluster.certificate_authority_data
    ):
        raise ConnectionConfigError(
            f"{owner} has a certificate authority and insecure-skip-tls-verify; remove one of them"
        )
    data = cluster.certificate_authority_data
    return _pem(data, cluster.certificate_authority, located.folder, owner)


def _credentials(name: str, located: _Located[_User], cluster: _Located[_Cluster]) -> Credentials:
    user, folder = located
    owner = f"user {name}"
    if user.auth_provider is not None:
        provider = user.auth_provider.get("name", "")
        raise ConnectionConfigError(
            f"{owner} has the auth-provider {provider}, which Kubernetes removed in 1.26; use an"
            " exec plugin, for example gke-gcloud-auth-plugin or kubelogin"
        )
    certificate = _pem(user.client_certificate_data, user.client_certificate, folder, owner)
    key = _pem(user.client_key_data, user.client_key, folder, owner)
    if (certificate == PemSource()) != (key == PemSource()):
        raise ConnectionConfigError(
            f"{owner} has a client certificate without its key, or a key alone"
        )
    if user.exec is not None:
        return ExecCredentials(user.exec, folder, name, _cluster_info(cluster))
    return ConfiguredCredentials(
        token=user.token,
        token_file=folder / user.token_file if user.token_file else None,
        basic=basic_credential(user.username, user.password) if user.username else "",
        certificate=certificate,
        key=key,
    )


def _cluster_info(located: _Located[_Cluster]) -> dict[str, Any]:
    """The description of the cluster for a plugin that asks for it."""
    cluster = located.value
    authority = _pem(
        cluster.certificate_authority_data, cluster.certificate_authority, located.folder, "cluster"
    )
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority.read()).decode(),
        "proxy-url": cluster.proxy_url,
        "config": _exec_extension(cluster.extensions),
    }
    return {key: value for key, value in info.items() if value}


def _exec_extension(extensions: Any) -> Any:
    """The cluster's settings for plugins."""
    for entry in extensions if isinstance(extensions, list) else ():
        if isinstance(entry, dict) and entry.get("name") == "client.authentication.k8s.io/exec":
            return entry.get("extension")
    return None


def _pem(data: str, path: str, folder: Path, owner: str) -> PemSource:
    """A document that is inline in base64, or in a file. The inline one counts."""
    if not data:
        return PemSource(path=folder / path) if path else PemSource()
    try:
        return PemSource(data=base64.b64decode(data, validate=True))
    except binascii.Error as error:
        raise ConnectionConfigError(
            f"{owner}: its certificate data is not base64: {error}"
        ) from error


def _impersonation(user: _User, name: str) -> tuple[tuple[str, str], ...]:
    """The headers for `as` and its companions."""
    headers = []
    if user.impersonate:
        headers.append(("Impersonate-User", user.impersonate))
    if user.impersonate_uid:
        headers.append(("Impersonate-Uid", user.impersonate_uid))
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    for key, values in (user.impersonate_extra or {}).items():
        # Header names cannot have every character of a key, and servers fold their case.
        header = f"Impersonate-Extra-{quote(key.lower(), safe='')}"
        headers += [(header, value) for value in values]
    if headers and not user.impersonate:
        raise ConnectionConfigError(
            f"user {name} has as-uid, as-groups or as-user-extra without as"
        )
    return tuple(headers)
