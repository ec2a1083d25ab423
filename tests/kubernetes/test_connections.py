"""Every way to reach an API server and to prove who one is, against a real one."""

import asyncio
import base64
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import NAMESPACES
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.errors import ConnectionConfigError
from phalanx.kube.connection.in_cluster import in_cluster
from phalanx.kube.connection.kubeconfig import find_connection
from tests.kubernetes.certificates import SERVER_NAME, client_certificate
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import Pool

V1 = "client.authentication.k8s.io/v1"


def connect(
    api: ApiServer,
    folder: Path,
    user: dict[str, Any],
    cluster: dict[str, Any] | None = None,
) -> ClusterConnection:
    """The connection of a kubeconfig file with this user and the API server's authority."""
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c", "user": user}],
        "clusters": [
            {
                "name": "c",
                "cluster": cluster or {"server": api.url, "certificate-authority": str(api.ca)},
            }
        ],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return find_connection(path)


class _UserInfo(msgspec.Struct):
    username: str
    groups: list[str]
    extra: dict[str, list[str]] = {}


async def who_am_i(connection: ClusterConnection) -> _UserInfo:
    """Who the API server takes this client for."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with ApiClient(connection) as client:
        body = await client.request("POST", path, {})
    answer: dict[str, Any] = msgspec.json.decode(body)
    return msgspec.convert(answer["status"]["userInfo"], _UserInfo)


async def test_a_token_in_the_file(api_server: ApiServer, tmp_path: Path) -> None:
    connection = connect(api_server, tmp_path, {"token": api_server.token})
    assert (await who_am_i(connection)).username == "admin"


@pytest.mark.parametrize("is_inline", [True, False])
async def test_a_client_certificate(api_server: ApiServer, tmp_path: Path, is_inline: bool) -> None:
    certificate, key = client_certificate(Path(api_server.folder), "ann", "team-a")
    user: dict[str, Any] = {"client-certificate": "ann.crt", "client-key": "ann.key"}
    if is_inline:
        user = {
            "client-certificate-data": base64.b64encode(certificate.encode()).decode(),
            "client-key-data": base64.b64encode(key.encode()).decode(),
        }
    else:
        (tmp_path / "ann.crt").write_text(certificate)
        (tmp_path / "ann.key").write_text(key)
    ann = await who_am_i(connect(api_server, tmp_path, user))
    assert ann.username == "ann"
    assert "team-a" in ann.groups


async def test_impersonation(api_server: ApiServer, tmp_path: Path) -> None:
    user = {
        "token": api_server.token,
        "as": "bob",
        "as-groups": ["a", "b"],
        "as-user-extra": {"acme.com/project": ["x", "y"]},
    }
    bob = await who_am_i(connect(api_server, tmp_path, user))
    assert bob.username == "bob"
    assert {"a", "b"} <= set(bob.groups)
    assert bob.extra == {"acme.com/project": ["x", "y"]}


async def test_the_name_on_the_certificate_can_be_another_than_the_address(
    api_server: ApiServer, tmp_path: Path
) -> None:
    cluster = {"server": api_server.url, "certificate-authority": str(api_server.ca)}
    user = {"token": api_server.token}
    named = connect(api_server, tmp_path, user, {**cluster, "tls-server-name": SERVER_NAME})
    assert (await who_am_i(named)).username == "admin"
    wrong = connect(api_server, tmp_path, user, {**cluster, "tls-server-name": "wrong.test"})
    with pytest.raises(ApiUnreachableError, match=r"not valid for 'wrong\.test'"):
        await who_am_i(wrong)


async def test_an_unknown_authority_is_refused_unless_it_is_not_verified(
    api_server: ApiServer, tmp_path: Path
) -> None:
    user = {"token": api_server.token}
    unknown = connect(api_server, tmp_path, user, {"server": api_server.url})
    with pytest.raises(ApiUnreachableError, match="certificate verify failed"):
        await who_am_i(unknown)
    cluster = {"server": api_server.url, "insecure-skip-tls-verify": True}
    assert (await who_am_i(connect(api_server, tmp_path, user, cluster))).username == "admin"


@asynccontextmanager
async def connect_proxy(seen: list[str]) -> AsyncIterator[str]:
    """A proxy that opens tunnels, and notes where to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        target = head.split()[1]
        seen.append(target)
        far_reader, far_writer = await asyncio.open_connection(*target.split(":"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65536):
            sink.write(chunk)
        sink.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_proxy_of_the_cluster_is_used(api_server: ApiServer, tmp_path: Path) -> None:
    seen: list[str] = []
    async with connect_proxy(seen) as proxy:
        cluster = {
            "server": api_server.url,
            "certificate-authority": str(api_server.ca),
            "proxy-url": proxy,
        }
        connection = connect(api_server, tmp_path, {"token": api_server.token}, cluster)
        assert (await who_am_i(connection)).username == "admin"
    assert seen == [api_server.url.removeprefix("https://")]


async def test_a_pod_uses_the_token_of_its_service_account_and_reads_it_again(
    api_server: ApiServer, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = f"/api/v1/namespaces/{pool.namespace}/serviceaccounts"
    await pool.api.request("POST", account, {"metadata": {"name": "scheduler"}})
    body = await pool.api.request("POST", f"{account}/scheduler/token", {"spec": {}})
    token: str = msgspec.json.decode(body)["status"]["token"]
    host, port = api_server.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    (tmp_path / "ca.crt").write_text(api_server.ca.read_text())
    (tmp_path / "namespace").write_text(pool.namespace)
    (tmp_path / "token").write_text("expired")
    connection = in_cluster(tmp_path)
    with pytest.raises(ApiStatusError) as refused:
        await who_am_i(connection)
    assert refused.value.code == 401
    (tmp_path / "token").write_text(token)
    found = await who_am_i(connection)
    assert found.username == f"system:serviceaccount:{pool.namespace}:scheduler"


class Plugin:
    """An exec plugin that returns the statuses of a file, one per run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "plugin"
        self.path.write_text(
            f"#!{sys.executable}\n"
            "import os, pathlib, sys\n"
            f"folder = pathlib.Path({str(folder)!r})\n"
            "runs = folder / 'runs'\n"
            "with runs.open('a') as file: file.write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
            "number = len(runs.read_text().splitlines())\n"
            "sys.stdout.write((folder / f'answer-{number}').read_text())\n"
        )
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def answers(self, *statuses: dict[str, Any]) -> None:
        for number, status in enumerate(statuses, 1):
            answer = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
            (self._folder / f"answer-{number}").write_bytes(msgspec.json.encode(answer))

    @property
    def runs(self) -> list[dict[str, Any]]:
        path = self._folder / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [msgspec.json.decode(line) for line in lines]

    def user(self, **others: Any) -> dict[str, Any]:
        return {"exec": {"command": "./plugin", "apiVersion": V1, **others}}


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def test_a_plugin_runs_once_until_its_token_expires(
    api_server: ApiServer, plugin: Plugin, tmp_path: Path
) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    past = datetime.now(UTC).isoformat()
    token = api_server.token
    plugin.answers(
        {"token": token, "expirationTimestamp": past},
        {"token": token, "expirationTimestamp": later},
    )
    connection = connect(api_server, tmp_path, plugin.user(provideClusterInfo=True))
    for _ in range(3):
        assert (await who_am_i(connection)).username == "admin"
    first, _second = plugin.runs
    assert first["spec"]["interactive"] is False
    assert first["spec"]["cluster"]["server"] == api_server.url
    given = base64.b64decode(first["spec"]["cluster"]["certificate-authority-data"])
    assert given == api_server.ca.read_bytes()


async def test_a_plugin_runs_again_when_its_token_is_refused(
    api_server: ApiServer, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.answers({"token": "revoked"}, {"token": api_server.token})
    connection = connect(api_server, tmp_path, plugin.user())
    users = await asyncio.gather(*(who_am_i(connection) for _ in range(5)))
    assert {user.username for user in users} == {"admin"}
    assert len(plugin.runs) == 2


async def test_a_plugin_may_return_a_certificate(
    api_server: ApiServer, plugin: Plugin, tmp_path: Path
) -> None:
    certificate, key = client_certificate(Path(api_server.folder), "carol", "team-c")
    plugin.answers({"clientCertificateData": certificate, "clientKeyData": key})
    assert (await who_am_i(connect(api_server, tmp_path, plugin.user()))).username == "carol"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("{}", "answered in no version"),
        ("oops", "wrote no ExecCredential"),
        (f'{{"apiVersion": "{V1}", "status": {{}}}}', "neither a token nor a certificate"),
        (None, "ended with status 1"),
    ],
)
async def test_a_plugin_that_fails_is_named(
    api_server: ApiServer, plugin: Plugin, tmp_path: Path, answer: str | None, reason: str
) -> None:
    if answer is not None:
        (tmp_path / "answer-1").write_text(answer)
    connection = connect(api_server, tmp_path, plugin.user())
    with pytest.raises(ConnectionConfigError, match=rf"exec plugin \./plugin .*{reason}"):
        await who_am_i(connection)


async def test_a_plugin_that_is_not_installed_is_named_with_its_hint(
    api_server: ApiServer, tmp_path: Path
) -> None:
    user = {"exec": {"command": "no-such-plugin", "apiVersion": V1, "installHint": "Run brew."}}
    with pytest.raises(ConnectionConfigError, match=r"is not installed\.\nRun brew"):
        await who_am_i(connect(api_server, tmp_path, user))


async def test_a_server_that_does_not_answer_is_named(
    api_server: ApiServer, tmp_path: Path
) -> None:
    connection = connect(api_server, tmp_path, {}, {"server": "http://127.0.0.1:1"})
    async with ApiClient(connection) as client:
        with pytest.raises(ApiUnreachableError, match=r"1:1: cannot connect: Connection refused"):
            await client.list_all(NAMESPACES)


async def test_a_certificate_that_is_not_trusted_is_named(
    api_server: ApiServer, tmp_path: Path
) -> None:
    connection = connect(api_server, tmp_path, {}, {"server": api_server.url})
    async with ApiClient(connection) as client:
        with pytest.raises(ApiUnreachableError) as refused:
            await client.list_all(NAMESPACES)
    assert str(refused.value).startswith(f"{api_server.url}: certificate verify failed: ")
    assert "SSL" not in str(refused.value)
