"""Tasks in real containers of Docker, with images from a real registry."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from phalanx.agent.containers.runtime import has_apparmor
from phalanx.secrets.encryption import add_key
from tests.integration.agent.container_site import (
    ALONE,
    WAIT,
    ContainerSite,
    child_named,
    container_pids,
)
from tests.integration.agent.docker_daemon import SAME_GROUP, DockerDaemon, require_docker
from tests.integration.agent.machines import Fleet
from tests.integration.agent.registry import Registry
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.worker_processes import is_alive

pytestmark = pytest.mark.asyncio(loop_scope="module")

Site = ContainerSite[DockerDaemon]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def registry(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Registry]:
    require_docker()
    registry = Registry(tmp_path_factory.mktemp("registry"))
    await registry.start()
    yield registry
    await registry.close()


@pytest.fixture(scope="module")
def daemon(registry: Registry) -> Iterator[DockerDaemon]:
    daemon = DockerDaemon("--live-restore")
    try:
        daemon.start()
        daemon.publish(f"{registry.host}/train:1")
        yield daemon
    finally:
        daemon.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _site(
    registry: Registry, daemon: DockerDaemon, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    fleet = Fleet(folder)
    key = folder / "secret.key"
    add_key(key)
    await fleet.serve("--suspect-jobs=1000", f"--secret-key-file={key}")
    flags = ("--container-runtime=docker",)
    site = Site(fleet, registry.host, (daemon,), shared, flags=flags, before=SAME_GROUP)
    await site.work("w-0")
    yield site
    await fleet.close()


@pytest_asyncio.fixture(loop_scope="module")
async def site(_site: Site) -> AsyncIterator[Site]:
    """A server with one worker. Every test has an empty shared folder."""
    yield _site
    await _site.clear()


async def test_a_gang_has_its_files_variables_user_and_output_in_containers(site: Site) -> None:
    [labels] = [each["tags"] for each in await site.fleet.get("/workers")]
    assert (labels["runtime"], labels["container_runtime"]) == ("containers", "docker")
    command = (
        'exec 2>&1; echo "rank $RANK of $WORLD_SIZE, $GREETING"; id -u;'
        " touch /file || echo read-only;"
        ' touch /tmp/file; echo \'{"step": 7, "checkpoint": true}\' >>"$PHALANX_PROGRESS";'
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
    [starting] = await site.records(failed["id"], "GangStarting")
    assert starting


async def test_a_stop_reaches_every_process_once_and_the_next_attempt_resumes(site: Site) -> None:
    machine = site.machine
    command = (
        'if [ -n "$PHALANX_CHECKPOINT_IN" ]; then cp "$PHALANX_CHECKPOINT_IN" /shared/resumed;'
        " exit 0; fi; trap 'echo signal >>/shared/signals' TERM;"
        " (trap 'echo step 41 >\"$PHALANX_CHECKPOINT_OUT\"; exit' TERM; echo up >/shared/ready;"
        " while true; do sleep 0.1; done) & child=$!; wait $child; wait $child;"
        " until test -e /shared/signals; do sleep 0.1; done"
    )
    job = await site.submit(command, checkpoint="each", backoff="0s")
    await site.written("ready")
    machine.send(signal.SIGTERM, spawner=False)  # a drain
    assert await machine.ended() == 0
    await site.start(machine)
    await site.fleet.reach(job, "done")
    assert await site.written("resumed") == "step 41"
    assert (site.shared / "signals").read_text() == "signal\n"


async def test_a_task_that_exceeds_its_memory_is_killed_and_the_job_says_so(site: Site) -> None:
    failed = await site.finished("tail /dev/zero", resources={"memory": "48Mi"}, restart="never")
    assert "was killed for memory" in failed["cause"], failed["cause"]


async def test_a_container_outlives_the_link_and_not_the_spawner(site: Site) -> None:
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

    async def are_gone() -> bool:
        return not any(is_alive(pid) for pid in processes)

    await eventually(are_gone, PATIENCE_S, machine.log)
    await site.written("ready")
    (site.shared / "go").touch()
    done = await site.fleet.reach(job, "done")
    assert done["attempt"] > 1
    assert not (site.shared / "overlap").exists()

    async def is_clean() -> bool:
        return not site.storages[0].containers(job)

    await eventually(is_clean, PATIENCE_S, machine.log)


async def test_a_start_that_the_daemon_finishes_late_is_no_second_attempt(site: Site) -> None:
    machine, daemon = site.machine, site.storages[0]
    await site.set_secret("data", {"bucket": "s3-7f3a91"})
    daemon.hold.touch()
    env = {"BUCKET": "${resources.data.bucket}"}
    job = await site.submit(ALONE + WAIT, env=env, backoff="0s")

    async def is_starting() -> bool:
        return daemon.held.exists()

    await eventually(is_starting, PATIENCE_S, machine.log)
    [container] = daemon.containers(job)
    await machine.kill()  # the daemon does not stop to start the container
    started = asyncio.create_task(site.start(machine))

    async def is_being_removed() -> bool:
        return started.done() or bool(daemon.commands("rm"))

    await eventually(is_being_removed, PATIENCE_S, machine.log)
    daemon.hold.unlink()
    await started
    (site.shared / "go").touch()
    assert (await site.fleet.reach(job, "done"))["attempt"] > 1
    assert not (site.shared / "overlap").exists()
    assert container not in daemon.containers(job)


async def test_output_and_exit_code_survive_a_restart_of_the_daemon(site: Site) -> None:
    repeated = "while ! test -e /shared/seen; do echo after; sleep 0.1; done;"
    job = await site.submit(f"echo before; {WAIT} {repeated} exit 5", restart="never")
    await site.written("ready")
    daemon, log = site.storages[0], site.machine.log

    async def has_started() -> bool:
        return not daemon.commands("start") and "before" in await site.logs(job)

    async def is_followed_again() -> bool:
        return "after" in await site.logs(job)

    await eventually(has_started, PATIENCE_S, log)
    daemon.stop()
    daemon.start()
    (site.shared / "go").touch()
    await eventually(is_followed_again, PATIENCE_S, log)
    (site.shared / "seen").touch()
    failed = await site.fleet.reach(job, "failed")
    assert failed["cause"] == "task 0 exited with code 5 on w-0"
    assert set((await site.logs(job)).split()) == {"before", "after"}


async def test_a_task_whose_monitor_is_killed_ends_with_it(site: Site) -> None:
    job = await site.submit(WAIT, restart="never")
    await site.written("ready")
    processes = container_pids(site.machine)
    os.kill(child_named(site.machine.spawner, "docker_monitor"), signal.SIGKILL)
    failed = await site.fleet.reach(job, "failed")
    assert "the monitor of its container was killed" in failed["cause"]
    assert not any(is_alive(pid) for pid in processes)


async def test_secrets_are_in_the_container_and_not_in_what_docker_writes(site: Site) -> None:
    values = {"bucket": "s3-7f3a91", "token": "tok-55d2c0"}
    await site.set_secret("data", values)
    job = await site.submit(
        'echo "$BUCKET" | cat - "$PHALANX_SECRETS/token" >/shared/secrets; echo "$BUCKET"; '
        "ls / | grep variables; " + WAIT,
        env={"BUCKET": "${resources.data.bucket}", "PLAIN": "plain-value"},
        secret_files={"token": "${resources.data.token}"},
        security={"run_as_user": 65534},
    )
    await site.written("ready")
    daemon = site.storages[0]
    [container] = daemon.containers(job)
    written = daemon.docker("inspect", container) + daemon.config_files()
    written += site.machine.log() + (site.machine.state / "journal").read_text()
    (site.shared / "go").touch()
    await site.fleet.reach(job, "done")
    assert (site.shared / "secrets").read_text() == "s3-7f3a91\ntok-55d2c0"
    logs = await site.logs(job)
    assert logs == "[redacted]\n"
    assert "plain-value" in written
    assert not [value for value in values.values() if value in written + logs]


async def test_what_cannot_be_started_is_refused_in_the_words_of_docker(site: Site) -> None:
    why = await site.refusal(image="nothing:1")
    assert f"cannot pull image {site.host}/nothing:1: " in why
    assert "manifest unknown" in why
    why = await site.refusal(security={"privileged": True})
    assert "security.privileged" in why
    if not has_apparmor():
        why = await site.refusal(security={"apparmor": "no-such-profile"})
        assert "security.apparmor: AppArmor is not enabled on this worker" in why
    failed = await site.finished(["/nothing"], restart="never")
    assert failed["cause"] == "task 0 exited with code 127 on w-0"
