"""The command line of a container: devices, users, mounts and what a worker refuses."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.containers.create_command import (
    SecurityRefused,
    check_security,
    create_command,
    user_in_container,
)
from phalanx.agent.containers.docker import Docker
from phalanx.agent.containers.new_container import ContainerSecrets, ContainerUser, NewContainer
from phalanx.agent.containers.podman import Podman
from phalanx.agent.containers.runtime import ContainerMount, ContainerPolicy
from phalanx.agent.messages import TaskUser
from phalanx.core.spec.security import ContainerSecurity
from phalanx.wire.sync import TaskSpec

RUNTIME = Podman("/usr/bin/podman", "/usr/bin/runc", Path("/state"))
DOCKER = Docker("docker", "unix:///docker.sock", "/workers", "runc", Path("/state/runtime"))
POLICY = ContainerPolicy(RUNTIME)


def task(**fields: Any) -> TaskSpec:
    return TaskSpec(command=fields.pop("command", ()), env={}, grace=0, image="train:1", **fields)


def created(spec: TaskSpec, policy: ContainerPolicy = POLICY, **env: str) -> list[str]:
    folder = Path("/state")
    new = NewContainer(
        key=("j-1.0", 2),
        name="phalanx-w-j-1.0.2",
        worker="w",
        process_tag=7,
        control_group="phalanx-1/j-1.0.2",
        attempt_folder=folder / "attempts",
        monitor_pid_file=folder / "monitor",
        pid_file=folder / "pid",
        id_file=folder / "id",
        env=env,
        user=user_in_container(spec, None, policy),
        secrets=ContainerSecrets(),
    )
    return list(create_command(spec, new, policy))


def values(words: list[str], option: str) -> list[str]:
    return [words[n + 1] for n, word in enumerate(words) if word == option]


def test_real_gpus_are_devices_that_the_container_numbers_from_zero() -> None:
    spec = task(devices=(2, 5))
    words = created(spec, ContainerPolicy(RUNTIME, has_gpus=True), CUDA_VISIBLE_DEVICES="2,5")
    assert values(words, "--device") == ["nvidia.com/gpu=2", "nvidia.com/gpu=5"]
    assert values(words, "--env") == ["CUDA_VISIBLE_DEVICES=0,1"]


def test_docker_gets_the_devices_in_one_option_and_the_whole_path_of_the_control_group() -> None:
    policy = ContainerPolicy(DOCKER, has_gpus=True)
    words = created(task(devices=(2, 5)), policy, CUDA_VISIBLE_DEVICES="2,5")
    assert values(words, "--gpus") == ['"device=2,5"']
    assert values(words, "--env") == ["CUDA_VISIBLE_DEVICES=0,1"]
    assert values(words, "--cgroup-parent") == ["/workers/phalanx-1/j-1.0.2"]


def test_docker_gets_the_program_as_an_option_and_the_rest_as_arguments() -> None:
    words = created(task(command=("train", "--fast"), args=("3",)), ContainerPolicy(DOCKER))
    assert values(words, "--entrypoint") == ["train"]
    assert words[-3:] == ["train:1", "--fast", "3"]


def test_simulated_gpus_are_no_devices() -> None:
    words = created(task(devices=(2, 5)), CUDA_VISIBLE_DEVICES="2,5")
    assert "--device" not in words
    assert values(words, "--env") == ["CUDA_VISIBLE_DEVICES=2,5"]


def test_a_command_replaces_the_program_of_the_image_and_arguments_are_for_it() -> None:
    assert created(task(args=("--epochs", "3")))[-3:] == ["train:1", "--epochs", "3"]
    shell = created(task(command="train | tee log"))
    assert values(shell, "--entrypoint") == ['["/bin/sh", "-c", "train | tee log"]']
    assert shell[-1] == "train:1"


def test_the_operator_decides_about_mounts() -> None:
    mount = ContainerMount(Path("/srv/data"), Path("/data"), read_only=True)
    words = created(task(), ContainerPolicy(RUNTIME, (mount,)))
    assert values(words, "--mount") == [
        "type=bind,source=/state/attempts,target=/phalanx",
        "type=bind,source=/srv/data,target=/data,ro=true",
    ]


def test_every_security_setting_is_an_option_of_podman() -> None:
    security = ContainerSecurity(65534, ("NET_ADMIN",), ("ALL",), "strict", True, True)
    words = created(task(security=security), ContainerPolicy(RUNTIME, allow_privileged=True))
    assert values(words, "--user") == ["65534:65534"]
    assert (values(words, "--cap-add"), values(words, "--cap-drop")) == (["NET_ADMIN"], ["ALL"])
    assert values(words, "--security-opt") == ["apparmor=strict"]
    assert {"--privileged", "--read-only"} <= set(words)


@pytest.mark.parametrize(
    ("security", "field"),
    [
        (ContainerSecurity(privileged=True), "security.privileged"),
        (ContainerSecurity(add_capabilities=("SYS_ADMIN",)), "security.capabilities.add"),
    ],
)
def test_privileges_need_the_permission_of_the_operator(
    security: ContainerSecurity, field: str
) -> None:
    spec = task(security=security)
    with pytest.raises(SecurityRefused, match=field):
        check_security(spec, POLICY)
    check_security(spec, ContainerPolicy(RUNTIME, allow_privileged=True))


def test_a_container_without_apparmor_needs_a_permission_where_others_have_it() -> None:
    spec = task(security=ContainerSecurity(apparmor="unconfined"))
    check_security(spec, POLICY)
    with pytest.raises(SecurityRefused, match=r"security\.apparmor: unconfined"):
        check_security(spec, ContainerPolicy(RUNTIME, has_apparmor=True))
    own = task(security=ContainerSecurity(apparmor="own"))
    check_security(own, ContainerPolicy(RUNTIME, has_apparmor=True))
    for policy in (POLICY, ContainerPolicy(RUNTIME, allow_privileged=True)):
        with pytest.raises(SecurityRefused, match=r"security\.apparmor: AppArmor is not enabled"):
            check_security(own, policy)
    check_security(spec, ContainerPolicy(RUNTIME, allow_privileged=True, has_apparmor=True))


def test_a_namespace_with_a_user_of_its_own_does_not_choose_another() -> None:
    own = TaskUser(200_001, 200_001, (7,))
    assert user_in_container(task(), own, POLICY) == ContainerUser(200_001, 200_001, (7,))
    with pytest.raises(SecurityRefused, match=r"security\.run_as_user"):
        user_in_container(task(security=ContainerSecurity(0)), own, POLICY)
    nobody = user_in_container(task(security=ContainerSecurity(65534)), own, POLICY)
    assert nobody == ContainerUser(65534, 65534)
