"""Pulls by podman from a real registry that asks for a login, and of images with GPG signatures."""

import base64
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from phalanx.agent.containers.docker import find_docker
from phalanx.agent.containers.image_pulls import ImagePulls, PullRefused, is_refusal
from phalanx.agent.containers.podman import find_podman
from phalanx.agent.containers.runtime import ContainerPolicy
from phalanx.agent.link.container_preparation import ContainerPreparation, ContainerRefused
from phalanx.agent.messages import TaskLimits
from phalanx.agent.state_dir import StateDir
from phalanx.wire.sync import TaskSpec
from tests.integration.agent.docker_daemon import DockerDaemon, require_docker
from tests.integration.agent.registry import LOGIN, Registry, Storage, require_podman

KEY = ("j-1.0", 1)


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    require_podman()
    registry = Registry(tmp_path, has_login=True)
    await registry.start()
    yield registry
    await registry.close()


def logins(registry: Registry, login: str) -> str:
    auth = base64.b64encode(login.encode()).decode()
    return json.dumps({"auths": {registry.host: {"auth": auth}}})


async def test_an_image_that_one_namespace_has_pulled_is_given_only_to_those_with_a_login(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path / "storage", registry.host, registry.port)
    for name, value in storage.variables.items():
        monkeypatch.setenv(name, value)
    runtime, reports = find_podman(tmp_path), list[str]()
    pulls = ImagePulls(runtime)
    try:
        digest = storage.publish("model:1", login=LOGIN)
        storage.podman("image", "rm", "--all")
        image, right = f"{registry.host}/model@{digest}", logins(registry, LOGIN)
        refused = r"cannot pull image .*(unauthorized|authentication)"
        with pytest.raises(PullRefused, match=refused):
            await pulls.ensure(image, "", reports.append)
        await pulls.ensure(image, right, reports.append)
        assert [each.partition(" ")[0] for each in reports] == ["pulling", "pulling", "pulled"]
        for wrong in ("", logins(registry, "user:wrong")):
            with pytest.raises(PullRefused, match=refused):
                await pulls.ensure(image, wrong, reports.append)
        other = ImagePulls(runtime)
        await other.ensure(image, right, reports.append)
        assert len(reports) == 3, "the image was in the storage"
        with pytest.raises(PullRefused, match="manifest unknown"):
            await pulls.ensure(f"{registry.host}/model@sha256:{'0' * 64}", right, reports.append)
        # The registry does not answer: those who had the image have it still.
        monkeypatch.setattr("phalanx.agent.containers.image_pulls._GRANT_S", 0.0)
        await registry.close()
        await pulls.ensure(image, right, reports.append)
    finally:
        storage.remove()


async def test_docker_gives_an_image_that_it_has_only_to_those_with_a_login(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_docker()
    daemon, reports = DockerDaemon(), list[str]()
    try:
        daemon.start()
        for name, value in daemon.variables.items():
            monkeypatch.setenv(name, value)
        # The control groups do not matter for pulls.
        monkeypatch.setattr("phalanx.agent.containers.docker.common_parent", lambda _: Path("/"))
        runtime, right = find_docker(tmp_path), logins(registry, LOGIN)
        assert runtime.no_secret_variables == ""
        pulls = ImagePulls(runtime)
        daemon.log_in(right)
        digest = daemon.publish(f"{registry.host}/model:1")
        daemon.docker("image", "rm", f"{registry.host}/model:1")
        daemon.log_in("{}")
        image = f"{registry.host}/model@{digest}"
        with pytest.raises(PullRefused, match="no basic auth credentials"):
            await pulls.ensure(image, "", reports.append)
        await pulls.ensure(image, right, reports.append)
        for wrong in ("", logins(registry, "user:wrong")):
            with pytest.raises(PullRefused, match=r"refuses access to model .*\(status 401\)"):
                await pulls.ensure(image, wrong, reports.append)
        assert [each.partition(" ")[0] for each in reports] == ["pulling", "pulling", "pulled"]
        with pytest.raises(PullRefused, match="manifest unknown"):
            await pulls.ensure(f"{registry.host}/model@sha256:{'0' * 64}", right, reports.append)
        daemon.log_in(right)  # the login of the worker
        await ImagePulls(runtime).ensure(image, "", reports.append)
        # The registry does not answer: those who had the image have it still.
        monkeypatch.setattr("phalanx.agent.containers.image_pulls._GRANT_S", 0.0)
        await registry.close()
        await pulls.ensure(image, right, reports.append)
    finally:
        daemon.close()


async def test_a_worker_names_the_pull_secret_that_is_missing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path / "storage", registry.host, registry.port)
    for name, value in storage.variables.items():
        monkeypatch.setenv(name, value)
    state_dir = StateDir(tmp_path / "state")
    state_dir.create()
    state_dir.create_attempt(KEY)
    policy = ContainerPolicy(find_podman(state_dir.path))
    containers = ContainerPreparation(policy, AsyncMock(), state_dir, "")
    spec = TaskSpec(
        command=(),
        env={},
        grace=0,
        namespace="ml",
        image=f"{registry.host}/model@sha256:{'0' * 64}",
        missing_pull_secrets=("default",),
    )
    try:
        with pytest.raises(ContainerRefused) as caught:
            await containers.prepare(
                KEY, spec, own=None, limits=TaskLimits(), variables={}, report=lambda _: None
            )
    finally:
        storage.remove()
    message = str(caught.value)
    assert message.startswith(f"cannot pull image {spec.image}: ")
    assert message.endswith(
        "; pull secret default does not exist or has no login; set it with `phalanx secret set"
        " default username=NAME password=- --namespace ml`"
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("reading manifest 1 in host/a/denied: connect: connection refused", False),
        ("Get https://host/v2/: dial tcp: lookup host: server misbehaving", False),
        ("received unexpected HTTP status: 503 Service Unavailable", False),
        ("reading manifest sha256:40440340 in host/a/denied: manifest unknown", True),
        ("Requesting bearer token: invalid status code from registry 403 (Forbidden)", True),
        ("requested access to the resource is denied", True),
    ],
)
def test_a_refusal_is_told_from_a_registry_that_does_not_answer(
    message: str, expected: bool
) -> None:
    assert is_refusal("host/a/denied:1", message) is expected


SIGNER = "release@example.com"


def gpg(*words: str) -> bytes:
    return subprocess.run(  # noqa: S603
        ["gpg", "--batch", "--passphrase", "", *words],  # noqa: S607
        capture_output=True,
        check=True,
    ).stdout


async def test_a_worker_pulls_only_images_with_the_gpg_signature_that_its_podman_requires(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, keys = tmp_path / ".config" / "containers", tmp_path / "gnupg"
    (settings / "registries.d").mkdir(parents=True)
    keys.mkdir(mode=0o700)
    storage = Storage(tmp_path / "storage", registry.host, registry.port)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name, value in {"HOME": tmp_path, "GNUPGHOME": keys, **storage.variables}.items():
        monkeypatch.setenv(name, str(value))
    try:
        gpg("--quick-generate-key", SIGNER, "ed25519", "sign", "never")
        (tmp_path / "release.gpg").write_bytes(gpg("--export", SIGNER))
        place = f"file://{tmp_path}/signatures"
        (settings / "registries.d" / "signatures.yaml").write_text(
            f"default-docker: {{sigstore: '{place}', sigstore-staging: '{place}'}}"
        )
        policy = settings / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        plain = storage.publish("plain:1", login=LOGIN)
        signed = storage.publish("signed:1", login=LOGIN, signer=SIGNER)
        key = {"keyType": "GPGKeys", "keyPath": str(tmp_path / "release.gpg")}
        required = {"type": "signedBy", "signedIdentity": {"type": "matchRepository"}} | key
        policy.write_text(
            json.dumps(
                {
                    "default": [{"type": "reject"}],
                    "transports": {"docker": {registry.host: [required]}},
                }
            )
        )
        pulls, auth = ImagePulls(find_podman(tmp_path)), logins(registry, LOGIN)
        await pulls.ensure(f"{registry.host}/signed@{signed}", auth, lambda _: None)
        with pytest.raises(PullRefused, match="A signature was required"):
            await pulls.ensure(f"{registry.host}/plain@{plain}", auth, lambda _: None)
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False)  # noqa: S607
        storage.remove()
