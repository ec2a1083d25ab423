"""Pulls by podman from a real registry that asks for a login."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.agent.containers.image_pulls import ImagePulls, PullFailed, PullRefused
from phalanx.agent.containers.runtime import find_runtime
from tests.integration.agent.registry import LOGIN, Registry, Storage, skip_without_podman


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    skip_without_podman()
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
    runtime, reports = find_runtime(), list[str]()
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
        # The registry does not answer: those who had the image have it still, and no others.
        monkeypatch.setattr("phalanx.agent.containers.image_pulls._GRANT_S", 0.0)
        await registry.close()
        await pulls.ensure(image, right, reports.append)
        with pytest.raises(PullFailed) as failed:
            await pulls.ensure(image, "", reports.append)
        assert not isinstance(failed.value, PullRefused), "another try may succeed"
    finally:
        storage.remove()
