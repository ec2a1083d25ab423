"""Tasks in real containers of podman, with images from a real registry."""

import os
import re
import shlex
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.secrets.encryption import add_key
from tests.integration.agent.container_site import (
    ALONE,
    WAIT,
    ContainerSite,
    child_named,
    container_pids,
)
from tests.integration.agent.machines import Fleet, Machine
from tests.integration.agent.registry import (
    NEEDED,
    Registry,
    Storage,
    require_podman,
)
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.worker_processes import is_alive

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: The images of the example.
TF_IMAGE = (
    "registry.cn-hangzhou.aliyuncs.com/kubeflow-images-public/"
    "tf-benchmarks-{}:v20171202-bdab599-dirty-284af3"
)
_REPLICAS = """
    {role}:
      replicas: {replicas}
      template:
        metadata:
          creationTimestamp: null
          labels:
            pod-group.scheduling.sigs.k8s.io/name: tf-smoke-gpu
            pod-group.scheduling.sigs.k8s.io/min-available: "5"
        spec:
          containers:
          - args:
            - python
            - tf_cnn_benchmarks.py
            - --batch_size=32
            - --model=resnet50
            - --variable_update=parameter_server
            - --flush_stdout=true
            - --num_gpus=1
            - --local_parameter_device=cpu
            - --device={kind}
            - --data_format=NHWC
            image: {image}
            name: tensorflow
            ports:
            - containerPort: 2222
              name: tfjob-port
            resources:
              limits:
                {limit}
            workingDir: /opt/tf-benchmarks/scripts/tf_cnn_benchmarks
          restartPolicy: OnFailure
"""
TFJOB = """
apiVersion: "kubeflow.org/v1"
kind: "TFJob"
metadata:
  name: "tf-smoke-gpu"
spec:
  tfReplicaSpecs:
""" + "".join(
    _REPLICAS.format(
        role=role, replicas=replicas, kind=kind, limit=limit, image=TF_IMAGE.format(kind)
    )
    for role, replicas, kind, limit in (
        ("PS", 1, "cpu", "cpu: '1'"),
        ("Worker", 4, "gpu", "nvidia.com/gpu: 2"),
    )
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def registry(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Registry]:
    require_podman()
    registry = Registry(tmp_path_factory.mktemp("registry"))
    await registry.start()
    yield registry
    await registry.close()


@pytest.fixture(scope="module")
def storages(
    registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Storage, Storage]]:
    """A storage with the image, and an empty one that reaches the registry through the gate."""
    folder = tmp_path_factory.mktemp("storages")
    direct = Storage(folder / "direct", registry.host, registry.port)
    gated = Storage(folder / "gated", registry.host, registry.gated_port)
    try:
        direct.publish("train:1")
        yield direct, gated
    finally:
        direct.remove()
        gated.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _site(
    registry: Registry, storages: tuple[Storage, Storage], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ContainerSite[Storage]]:
    folder = tmp_path_factory.mktemp("site")
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    fleet = Fleet(folder)
    key = folder / "secret.key"
    add_key(key)
    images = ",".join(f"{TF_IMAGE.format(kind)}={registry.host}/tf:1" for kind in ("cpu", "gpu"))
    await fleet.serve("--suspect-jobs=1000", f"--secret-key-file={key}", f"--image-map={images}")
    site = ContainerSite(fleet, registry.host, storages, shared)
    await site.work("w-0")
    yield site
    await fleet.close()


@pytest_asyncio.fixture(loop_scope="module")
async def site(_site: ContainerSite[Storage]) -> AsyncIterator[ContainerSite[Storage]]:
    """A server with one worker. Every test has an empty shared folder."""
    yield _site
    await _site.clear()


async def test_a_slow_pull_on_one_worker_delays_the_whole_gang(
    site: ContainerSite[Storage], registry: Registry
) -> None:
    other = await site.work("w-1", storage=1)
    labels = [each["tags"] for each in await site.fleet.get("/workers")]
    assert [each["runtime"] for each in labels] == ["containers", "containers"]
    registry.gate.clear()
    job = await site.submit("echo rank $RANK >>/shared/started", replicas=2, per_node=1)

    async def is_pulled_on_one() -> bool:
        messages = [each["message"] for each in await site.records(job, "TaskPreparing")]
        begun = [each for each in messages if each.startswith("pulling")]
        return len(begun) == 2 and any(each.startswith("pulled") for each in messages)

    await eventually(is_pulled_on_one, PATIENCE_S, site.fleet.server.told)
    assert (await site.fleet.reach(job, "starting"))["phase"] == "starting"
    assert not (site.shared / "started").exists()
    registry.gate.set()
    await site.fleet.reach(job, "done")
    assert sorted((site.shared / "started").read_text().split()) == ["0", "1", "rank", "rank"]
    [starting] = await site.records(job, "GangStarting")
    pulls = [each["at"] for each in await site.records(job, "TaskPreparing")]
    assert max(pulls) <= starting["at"]
    await other.kill()
    site.fleet.machines.remove(other)
    await site.fleet.client.delete(f"{site.fleet.server.url}/workers/w-1")


async def test_a_pull_that_fails_is_a_reason_with_the_answer_of_the_registry(
    site: ContainerSite[Storage],
) -> None:
    why = await site.refusal(image="nothing:1")
    assert f"cannot pull image {site.host}/nothing:1" in why
    assert "manifest unknown" in why
    assert why.endswith("; gave up after 2 attempts on w-0")


async def test_an_image_of_the_host_is_not_pulled(site: ContainerSite[Storage]) -> None:
    job = await site.fleet.submit(
        roles={"worker": {"image": "localhost/nothing:1", "command": "true"}}
    )
    failed = await site.fleet.reach(job, "failed")
    assert "image localhost/nothing:1 is not in the storage of this worker" in failed["cause"]


async def test_a_task_has_its_files_variables_user_and_output_in_the_container(
    site: ContainerSite[Storage],
) -> None:
    command = (
        'echo "rank $RANK of $WORLD_SIZE, $GREETING"; id -u; touch /file || echo read-only;'
        ' echo \'{"step": 7, "checkpoint": true}\' >>"$PHALANX_PROGRESS";'
        " grep CapEff /proc/self/status; env | grep -c PYTHONWARNINGS; exit 3"
    )
    security = {"run_as_user": 65534, "read_only_root": True, "capabilities": {"drop": ["ALL"]}}
    env = {"GREETING": "hello\nyou"}
    failed = await site.finished(command, security=security, env=env, restart="never")
    assert failed["cause"] == "task 0 exited with code 3 on w-0"
    lines = (await site.logs(failed["id"])).split("\n")
    assert lines[:3] == ["rank 0 of 1, hello", "you", "65534"]
    assert lines[3:5] == ["touch: /file: Read-only file system", "read-only"]
    assert lines[5:7] == ["CapEff:\t0000000000000000", "0"]
    [saved] = await site.records(failed["id"], "WorkSaved")
    assert saved["step"] == 7


async def test_the_program_of_the_image_gets_the_arguments(site: ContainerSite[Storage]) -> None:
    storage = site.storages[0]
    digest = storage.publish("entry:1", "--change", 'ENTRYPOINT ["echo"]')
    _, second = [
        await site.finished(None, image=f"entry@{digest}", args=["an argument"]) for _ in range(2)
    ]
    assert await site.logs(second["id"]) == "an argument\n"
    assert not await site.records(second["id"], "TaskPreparing"), "it was in the storage"

    async def are_removed() -> bool:
        return not storage.podman("ps", "--all", "--quiet")

    await eventually(are_removed, PATIENCE_S, site.machine.log)
    storage.podman("image", "rm", "--force", f"{site.host}/entry@{digest}", f"{site.host}/entry:1")
    third = await site.finished(None, image=f"entry@{digest}", args=["again"], backoff="0s")
    assert (third["phase"], third["attempt"]) == ("done", 2)
    assert (await site.logs(third["id"])).endswith("again\n")


async def test_a_tfjob_runs_with_other_images_in_place_of_those_that_it_names(
    site: ContainerSite[Storage],
) -> None:
    show = '#!/bin/sh\necho "$(pwd) $TF_CONFIG $*" >>/shared/shown\n'
    site.storages[0].publish("tf:1", python=show)
    sent = await site.fleet.client.post(
        f"{site.fleet.server.url}/jobs",
        content=TFJOB.encode(),
        headers={"content-type": "application/yaml"},
    )
    assert sent.status_code == 201, sent.text
    await site.fleet.reach(sent.json()["id"], "done")
    lines = (site.shared / "shown").read_text().splitlines()
    assert len(lines) == 5
    for line in lines:
        assert line.startswith("/opt/tf-benchmarks/scripts/tf_cnn_benchmarks {"), line
        assert "tf_cnn_benchmarks.py --batch_size=32" in line
    assert sum("--device=gpu" in line for line in lines) == 4


async def test_the_commands_on_the_page_install_podman_and_start_a_worker(
    site: ContainerSite[Storage],
) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/containers.md").read_text("utf-8")
    [block] = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    install, start = block.splitlines()
    assert set(install.split()[4:]) <= set(NEEDED)
    words = shlex.split(start.replace("/srv/data", str(site.shared)))
    assert words[:3] == ["phalanx", "worker", "--server"]
    machine = Machine(site.fleet.folder, "w-page", site.fleet.server.url)
    site.fleet.machines.append(machine)
    await machine.start(*words[4:], before=(), **site.storages[0].variables)
    await site.fleet.ready()
    await machine.kill()
    site.fleet.machines.remove(machine)
    await site.fleet.client.delete(f"{site.fleet.server.url}/workers/w-page")


async def test_a_stop_reaches_every_process_and_the_next_attempt_resumes(
    site: ContainerSite[Storage],
) -> None:
    machine = site.machine
    # The container ends with its program, which waits for a process in the background.
    command = (
        'if [ -n "$PHALANX_CHECKPOINT_IN" ]; then cp "$PHALANX_CHECKPOINT_IN" /shared/resumed;'
        " exit 0; fi; trap : TERM;"
        " (trap 'echo step 41 >\"$PHALANX_CHECKPOINT_OUT\"; exit' TERM; echo up >/shared/ready;"
        " while true; do sleep 0.1; done) & child=$!; wait $child; wait $child"
    )
    job = await site.submit(command, checkpoint="each", backoff="0s")
    await site.written("ready")
    machine.send(signal.SIGTERM, spawner=False)  # a drain
    assert await machine.ended() == 0
    await site.start(machine)
    await site.fleet.reach(job, "done")
    assert await site.written("resumed") == "step 41"


async def test_a_program_without_a_handler_ends_with_the_stop_and_not_after_the_grace(
    site: ContainerSite[Storage],
) -> None:
    job = await site.submit("echo up >/shared/ready; sleep 600", grace="10m")
    await site.written("ready")
    await site.fleet.cancel(job)
    await site.fleet.reach(job, "cancelled")


async def test_a_task_that_exceeds_its_memory_is_killed_and_the_job_says_so(
    site: ContainerSite[Storage],
) -> None:
    failed = await site.finished("tail /dev/zero", resources={"memory": "48Mi"}, restart="never")
    assert "was killed for memory" in failed["cause"], failed["cause"]


async def test_a_killed_monitor_changes_nothing_for_its_container(
    site: ContainerSite[Storage],
) -> None:
    machine = site.machine
    job = await site.submit(f"{WAIT} exit 5", restart="never")
    await site.written("ready")
    os.kill(child_named(machine.spawner, "conmon"), signal.SIGKILL)
    (site.shared / "go").touch()
    failed = await site.fleet.reach(job, "failed")
    assert failed["cause"] == "task 0 exited with code 5 on w-0"


async def test_a_container_outlives_the_link_and_not_the_spawner(
    site: ContainerSite[Storage],
) -> None:
    machine = site.machine
    job = await site.submit(ALONE + WAIT, backoff="0s")
    await site.written("ready")
    machine.send(signal.SIGKILL, spawner=False)
    await machine.ended()
    await site.start(machine)
    assert (await site.fleet.reach(job, "running"))["attempt"] == 1
    processes = container_pids(machine)
    assert processes
    (site.shared / "ready").unlink()
    machine.send(signal.SIGKILL, link=False)

    async def are_dead() -> bool:
        return not any(map(is_alive, processes))

    await eventually(are_dead, PATIENCE_S, machine.log)
    (site.shared / "go").touch()
    done = await site.fleet.reach(job, "done")
    assert done["attempt"] > 1
    assert not (site.shared / "overlap").exists()

    async def is_clean() -> bool:
        return not site.storages[0].containers(job)

    await eventually(is_clean, PATIENCE_S, machine.log)


async def test_secrets_are_in_the_container_and_not_in_what_podman_writes(
    site: ContainerSite[Storage],
) -> None:
    values = {"bucket": "s3-7f3a91", "token": "tok-55d2c0"}
    await site.set_secret("data", values)
    job = await site.submit(
        'echo "$BUCKET" | cat - "$PHALANX_SECRETS/token" >/shared/secrets; echo "$BUCKET"; ' + WAIT,
        env={"BUCKET": "${resources.data.bucket}", "PLAIN": "plain-value"},
        secret_files={"token": "${resources.data.token}"},
        security={"run_as_user": 65534},
    )
    await site.written("ready")
    [container] = site.storages[0].containers(job)
    written = site.storages[0].podman("inspect", container) + site.storages[0].config_files()
    written += site.machine.log() + (site.machine.state / "journal").read_text()
    (site.shared / "go").touch()
    await site.fleet.reach(job, "done")
    assert (site.shared / "secrets").read_text() == "s3-7f3a91\ntok-55d2c0"
    written += await site.logs(job)
    assert "plain-value" in written
    assert not [value for value in values.values() if value in written]


async def test_a_worker_refuses_privileges_by_the_name_of_the_field(
    site: ContainerSite[Storage],
) -> None:
    for field in ({"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}):
        why = await site.refusal(security=field)
        assert f"security.{next(iter(field))}" in why
        assert "--allow-privileged" in why
    why = await site.refusal(security={"apparmor": "no-such-profile"})
    assert "AppArmor is not enabled" in why or "cannot prepare the container" in why
    why = await site.refusal(env={"TOKEN": "${resources.nothing.token}"})
    assert "secret default/nothing has no key token" in why


async def test_a_task_without_an_image_runs_no_command_of_the_container_runtime(
    site: ContainerSite[Storage], tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    for name in ("podman", "docker", "runc", "conmon", "catatonit"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >>{calls}\nexit 1\n')
        program.chmod(0o700)
    machine = Machine(site.fleet.folder, "w-bare", site.fleet.server.url)
    site.fleet.machines.append(machine)
    await machine.start("--label=kind=bare", PATH=f"{tmp_path}:{os.environ['PATH']}")
    await site.fleet.ready()
    [worker] = [each for each in await site.fleet.get("/workers") if each["id"] == "w-bare"]
    assert worker["tags"]["container_runtime"] == "podman"
    bare = {"worker": {"command": "true", "node_selector": {"kind": "bare"}}}
    for _ in range(3):
        job = await site.fleet.submit(roles=bare)
        await site.fleet.reach(job, "done")
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0
    site.fleet.machines.remove(machine)
    await site.fleet.client.delete(f"{site.fleet.server.url}/workers/w-bare")
    assert not calls.exists(), calls.read_text()
