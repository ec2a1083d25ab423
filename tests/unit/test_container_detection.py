"""Which container runtime a worker uses, and why a Docker daemon is not used."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from phalanx.agent.containers import detection, docker
from phalanx.agent.containers.detection import find_runtime
from phalanx.agent.containers.runtime import NoRuntime
from phalanx.agent.containers.runtime_choice import RuntimeChoice

STATE = Path("/var/lib/phalanx/worker")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "containers.md"
INFO: dict[str, Any] = {
    "ServerVersion": "20.10.24",
    "CgroupDriver": "cgroupfs",
    "DefaultRuntime": "runc",
    "Runtimes": {"runc": {"path": "runc"}, "phalanx": {"path": str(STATE / "containers/runtime")}},
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine with Docker and without podman; a test changes what the daemon says."""
    info = dict(INFO)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(
        "shutil.which", lambda name, **_: None if name == "podman" else f"/usr/bin/{name}"
    )
    monkeypatch.setattr(docker, "_ask_daemon", lambda *_: info)
    monkeypatch.setattr(docker, "common_parent", lambda _: PurePosixPath("/"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return info


@pytest.mark.usefixtures("machine")
def test_docker_is_used_where_podman_is_not_installed() -> None:
    found = find_runtime(RuntimeChoice.AUTO, STATE)
    assert found.name == "docker"
    assert found.no_secret_variables == ""
    with pytest.raises(NoRuntime, match="podman is not installed"):
        find_runtime(RuntimeChoice.PODMAN, STATE)


@pytest.mark.usefixtures("machine")
def test_podman_comes_before_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(detection, "find_docker", lambda _: pytest.fail("the daemon was asked"))
    assert find_runtime(RuntimeChoice.AUTO, STATE).name == "podman"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"CgroupDriver": "systemd"}, r"cgroup driver systemd; set .*native.cgroupdriver=cgroupfs"),
        ({"SecurityOptions": ["name=userns"]}, r"maps users \(rootless or userns-remap\)"),
    ],
)
def test_a_daemon_that_cannot_be_used_is_refused(
    machine: dict[str, Any], said: dict[str, Any], why: str
) -> None:
    machine |= said
    with pytest.raises(NoRuntime, match=rf"podman is not installed; the Docker daemon .*{why}"):
        find_runtime(RuntimeChoice.AUTO, STATE)


@pytest.mark.usefixtures("machine")
def test_different_control_groups_and_other_machines_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker, "common_parent", lambda _: None)
    with pytest.raises(NoRuntime, match="another control group in each hierarchy"):
        find_runtime(RuntimeChoice.DOCKER, STATE)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    with pytest.raises(NoRuntime, match=r"DOCKER_HOST is tcp://10\.0\.0\.1:2375"):
        find_runtime(RuntimeChoice.DOCKER, STATE)


def test_secrets_in_variables_need_the_setting_that_the_page_shows(machine: dict[str, Any]) -> None:
    [block] = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shown = json.loads(block)
    assert shown["runtimes"]["phalanx"] == INFO["Runtimes"]["phalanx"]
    assert shown["exec-opts"] == ["native.cgroupdriver=cgroupfs"]
    machine["Runtimes"] = {"runc": {"path": "runc"}}
    why = find_runtime(RuntimeChoice.DOCKER, STATE).no_secret_variables
    assert json.dumps(shown["runtimes"])[1:-1] in why
    assert "/etc/docker/daemon.json" in why
