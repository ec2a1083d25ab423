"""Faults 14 and 15 of Workron's worker, and that Phalanx does not have them."""

import json
import signal
from pathlib import Path

import pytest

from tests.integration.agent.machines import Fleet
from tests.integration.agent.ranks import WORK, Ranks
from tests.integration.server.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Saves its last checkpoint and one more character when it is stopped.
_SAVING = """
save() { echo "$(cat "$PHALANX_CHECKPOINT_IN")$RANK" >"$PHALANX_CHECKPOINT_OUT"; exit 0; }
trap save TERM
[ -z "$PHALANX_CHECKPOINT_IN" ] || cp "$PHALANX_CHECKPOINT_IN" "$MARKS/given.$RANK"
[ -z "$CHECKPOINT_DATA" ] || echo "$CHECKPOINT_DATA" | base64 -d >"$MARKS/inline.$RANK"
"""
_OBEDIENT = """
trap 'echo term >>"$MARKS/terms"; exit' TERM
echo >>"$MARKS/up"
while :; do sleep 0.1; done
"""


async def test_fault_14_a_shutdown_lets_its_tasks_save_and_they_continue_elsewhere(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(2)
    ranks = Ranks(small, tmp_path / "gang", size=2)
    await ranks.submit(prepare=_SAVING, grace="10m")
    await ranks.all_run(1)
    leaving = small.machines[0]
    leaving.send(signal.SIGTERM, spawner=False)
    assert await leaving.ended() == 0
    await small.reach(ranks.job, "pending")
    await small.work(1, prefix="spare")
    await ranks.all_run(2)
    assert (ranks.marks / "given.0").read_text() == (ranks.marks / "inline.0").read_text() == "0\n"
    done = await ranks.finish()
    assert done["failures"] == 0
    [evicted] = [event for event in await small.events(ranks.job) if event["kind"] == "JobEvicted"]
    assert evicted["why"] == "worker w-0 is shutting down"


async def test_fault_14_a_shutdown_while_no_server_answers_keeps_what_the_tasks_save(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(2)
    ranks = Ranks(small, tmp_path / "gang", size=2)
    await ranks.submit(prepare=_SAVING, checkpoint="all", grace="10m")
    await ranks.all_run(1)
    await small.server.kill()
    for machine in small.machines:
        machine.send(signal.SIGTERM, spawner=False)
    await ranks.are_gone()
    await small.serve()
    for machine in small.machines:
        assert await machine.ended() == 0
    for machine in small.machines:
        await machine.start()  # sends what the one before could not
    await ranks.all_run(2)
    assert (ranks.marks / "given.0").read_text() == "0\n"
    assert (ranks.marks / "given.1").read_text() == "1\n"
    assert (await ranks.finish())["lost"]["gpu_s"] == 0


async def test_fault_14_a_second_signal_does_not_wait_for_the_grace(
    small: Fleet, tmp_path: Path
) -> None:
    [machine] = await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(prepare="trap '' TERM", grace="10m")
    await ranks.all_run(1)
    machine.send(signal.SIGTERM, spawner=False)

    async def is_stopping() -> bool:
        return bool(machine.logged("stopping task"))

    await eventually(is_stopping, PATIENCE_S)
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0
    await ranks.are_gone()


async def test_fault_14_a_worker_that_the_server_does_not_know_registers_again(
    small: Fleet,
) -> None:
    [machine] = await small.work(1)
    removed = await small.client.delete(f"{small.server.url}/workers/{machine.name}")
    assert removed.status_code == 204

    async def has_registered() -> bool:
        return len(machine.logged("registered")) == 2

    await eventually(has_registered, PATIENCE_S, machine.log)
    await small.ready()
    await small.reach(await small.submit(command="true"), "done")
    assert len(machine.logged("registered")) == 2


async def test_fault_14_a_superseded_worker_kills_its_tasks_and_exits(
    small: Fleet, tmp_path: Path
) -> None:
    [machine] = await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(prepare="trap '' TERM", grace="10m", max_retries=1)
    await ranks.all_run(1)
    another = {"id": machine.name, "incarnation": "another", "protocol": "sync"}
    await small.client.post(f"{small.server.url}/workers/register", json=another)
    assert await machine.ended() == 1
    assert [line["event"] for line in machine.lines[-2:]] == ["worker superseded", "task ended"]
    await ranks.are_gone()


async def test_fault_14_an_exit_is_reported_until_the_server_acknowledges_it(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit(WORK + "; exit 7", restart="never")
    await ranks.all_run(1)
    await small.server.kill()
    (ranks.marks / "finish").touch()
    await ranks.are_gone()
    await small.serve()
    failed = await small.reach(ranks.job, "failed")
    assert failed["tasks"][0]["exit"] == {"code": 7}


async def test_fault_15_arguments_reach_the_program_unchanged(small: Fleet, tmp_path: Path) -> None:
    await small.work(1)
    words = ["two words", "it's", '"', "$HOME", "", "ü\n"]
    show = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"
    command = ["python3", "-c", show, str(tmp_path / "words"), *words]
    job = await small.submit(name="words", roles={"worker": {"command": command}})
    await small.reach(job, "done")
    assert json.loads((tmp_path / "words").read_text()) == words


async def test_fault_15_every_process_of_a_task_gets_sigterm_and_is_killed_after_the_grace(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    obedient = tmp_path / "obedient.sh"
    obedient.write_text(_OBEDIENT)
    up = ranks.marks / "up"
    family = f"setsid sh {obedient} & sh {obedient} & . {obedient}"
    # Far more than they need, also on a busy machine: none is killed before it has its signal.
    await ranks.submit(family, grace="10m")

    async def are_up() -> bool:
        return up.exists() and len(up.read_text()) == 3

    await eventually(are_up, PATIENCE_S)
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert (ranks.marks / "terms").read_text() == "term\n" * 3

    stubborn = Ranks(small, tmp_path / "stubborn", size=1)
    await stubborn.submit(prepare="trap '' TERM; setsid sleep 1000 & sleep 1000 &", grace="1s")
    await stubborn.all_run(1)
    await small.cancel(stubborn.job)
    await small.reach(stubborn.job, "cancelled")
    await stubborn.are_gone()
