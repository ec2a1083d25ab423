"""One worker: upgrades, wrong settings, a full disk, and a server that cannot be reached."""

import signal
from pathlib import Path

import pytest

from tests.integration.agent.machines import Fleet, Machine
from tests.integration.agent.ranks import WORK, Ranks
from tests.integration.server.processes import phalanx, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_next_worker_takes_over_tasks_that_were_kept(
    small: Fleet, tmp_path: Path
) -> None:
    [machine] = await small.work(1, "--keep")
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit()
    [started] = await ranks.all_run(1)
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0
    assert ranks.living() == [started]
    await machine.start()
    await small.ready()
    assert (await ranks.finish())["failures"] == 0
    assert ranks.starts() == [started]


async def test_a_state_directory_is_used_by_one_worker_at_a_time(small: Fleet) -> None:
    [machine] = await small.work(1)
    status, _, err = await phalanx("worker", f"--state-dir={machine.state}")
    assert status == 2
    assert (
        f"another worker (process {machine.link}) uses the state directory {machine.state}" in err
    )


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--resources=cpu=many", '--resources: cpu is "many", not a quantity'),
        ("--resources=cpu", "--resources: cpu has no value; write it like name=value"),
        ("--label=rack", "--label: rack has no value; write it like name=value"),
        ("--label=a b=c", '--label is "a b"; use letters, digits'),
        ("--id=A b", '--id is "A b"; use letters, digits'),
        ("--server=http://one,two", "--server: two is not a URL"),
        ("--server=scheduler", "--server: scheduler is not a URL"),
        ("--token-file=/nowhere", "--token-file: cannot read /nowhere"),
        ("--state-dir=/proc/nowhere", "cannot use the state directory /proc/nowhere"),
    ],
)
async def test_a_wrong_setting_is_named(flag: str, words: str, tmp_path: Path) -> None:
    status, _, err = await phalanx("worker", f"--state-dir={tmp_path}", flag)
    assert status == 2
    assert words in err
    assert "Traceback" not in err


async def test_output_that_the_disk_cannot_take_is_dropped_and_the_task_continues(
    small: Fleet, tmp_path: Path
) -> None:
    machine = Machine(small.folder, "full", small.server.url)
    small.machines.append(machine)
    # No file may grow beyond a quarter of a MiB: to the spawner that is a full disk.
    await machine.start(before=("sh", "-c", 'ulimit -f 512; exec "$@"', "sh"))
    await small.ready()
    noted = tmp_path / "noted"
    lines = f"while [ ! -e {noted} ]; do echo; sleep 0.1; done; echo the end"
    job = await small.submit(command=f"head -c 9000000 /dev/zero; {lines}")

    async def after_the_note() -> str:
        """The output after the line that says what is missing."""
        answer = await small.client.get(f"{small.server.url}/jobs/{job}/logs?task=0")
        return str(answer.text.rpartition("bytes of output: File too large]\n")[2])

    async def is_noted() -> bool:
        return set(await after_the_note()) == {"\n"}

    async def is_complete() -> bool:
        return (await after_the_note()).strip("\n") == "the end"

    await eventually(is_noted, PATIENCE_S)
    noted.touch()
    await small.reach(job, "done")
    await eventually(is_complete, PATIENCE_S)


async def test_a_token_authenticates_the_worker_and_is_not_passed_to_tasks(tmp_path: Path) -> None:
    created = await phalanx(
        "token", "create", "rack", "--role=join", f"--store={sqlite_at(tmp_path)}"
    )
    token = created[1].split()[-1]
    (tmp_path / "token").write_text(token + "\n")
    admin = await phalanx("token", "create", "me", "--role=admin", f"--store={sqlite_at(tmp_path)}")
    fleet = Fleet(tmp_path)
    fleet.client.headers["Authorization"] = f"Bearer {admin[1].split()[-1]}"
    await fleet.serve("--loopback-open=false")
    try:
        await fleet.work(1, f"--token-file={tmp_path / 'token'}")
        seen = tmp_path / "seen"
        await fleet.reach(await fleet.submit(command=f"env >{seen}"), "done")
        assert "PHALANX_TASK=" in seen.read_text()
        assert token not in seen.read_text()
    finally:
        await fleet.close()


async def test_progress_is_reported_with_its_steps_and_checkpoints(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit("""echo '{"step": 7, "checkpoint": true}' >>"$PHALANX_PROGRESS"; """ + WORK)
    await ranks.all_run(1)

    async def is_safe() -> bool:
        return "WorkSaved" in await ranks.kinds()

    await eventually(is_safe, PATIENCE_S)
    await ranks.finish()


async def test_a_fenced_task_ends_with_its_lease_and_other_tasks_continue(
    impatient: Fleet, tmp_path: Path
) -> None:
    await impatient.work(2)
    fenced = Ranks(impatient, tmp_path / "fenced", size=1)
    free = Ranks(impatient, tmp_path / "free", size=1)
    await fenced.submit(fence=True, grace="1s")
    await free.submit()
    await fenced.all_run(1)
    await free.all_run(1)
    await impatient.server.kill()
    await fenced.are_gone()
    assert len(free.living()) == 1
    await impatient.serve()
    await free.finish()
    await fenced.all_run(2)
    await fenced.finish()


async def test_a_task_is_stopped_at_its_time_limit_without_the_server(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(time_limit="3s")
    await ranks.all_started(1)
    await small.server.kill()
    await ranks.are_gone()
    await small.serve()
    assert "limit" in (await small.reach(ranks.job, "timed-out"))["cause"]


async def test_instructions_from_a_server_of_another_cluster_are_ignored(
    small: Fleet, tmp_path: Path
) -> None:
    [machine] = await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit()
    await ranks.all_run(1)
    await small.server.kill()
    ours, small.store = small.store, sqlite_at(tmp_path)
    await small.serve()

    async def is_noticed() -> bool:
        return any(
            "another cluster" in line["error"] for line in machine.logged("cannot reach server")
        )

    await eventually(is_noticed, PATIENCE_S)
    assert len(ranks.living()) == 1
    await small.server.kill()
    small.store = ours
    await small.serve()
    assert (await ranks.finish())["failures"] == 0
