"""What goes wrong in Workron's worker, fault by fault, and does not here."""

import json
import signal
from pathlib import Path

import pytest

from tests.integration.agent.machines import Fleet
from tests.integration.agent.ranks import WORK, Ranks
from tests.integration.server.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Saves what it was given and one more when it is told to stop.
_SAVING = """
save() { echo "$(cat "$PHALANX_CHECKPOINT_IN")$RANK" >"$PHALANX_CHECKPOINT_OUT"; exit 0; }
trap save TERM
[ -z "$PHALANX_CHECKPOINT_IN" ] || cp "$PHALANX_CHECKPOINT_IN" "$MARKS/given.$RANK"
[ -z "$CHECKPOINT_DATA" ] || echo "$CHECKPOINT_DATA" | base64 -d >"$MARKS/inline.$RANK"
"""
_LISTENING = """
trap 'echo told >>"$MARKS/told"; exit' TERM
echo >>"$MARKS/up"
while :; do sleep 0.1; done
"""
_DEAF = """
trap '' TERM
echo >>"$MARKS/up"
while :; do sleep 0.1; done
"""


async def test_fault_14_a_shutdown_lets_its_tasks_save_and_they_go_on_elsewhere(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(2)
    ranks = Ranks(small, tmp_path / "gang", size=2)
    await ranks.submit(_SAVING + WORK)
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
    [evicted] = [event for event in await small.story(ranks.job) if event["kind"] == "Evicted"]
    assert evicted["detail"]["why"] == "worker w-0 is shutting down"


async def test_fault_14_a_second_signal_does_not_wait_for_the_grace(
    small: Fleet, tmp_path: Path
) -> None:
    [machine] = await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit("trap '' TERM; " + WORK, grace="10m")
    await ranks.all_run(1)
    machine.send(signal.SIGTERM, spawner=False)

    async def told() -> bool:
        return bool(machine.seen("stopping task"))

    await eventually(told, 30)
    machine.send(signal.SIGTERM, spawner=False)
    assert await machine.ended() == 0
    await ranks.are_gone()


async def test_fault_14_a_worker_that_is_not_known_registers_again(small: Fleet) -> None:
    [machine] = await small.work(1)
    removed = await small.client.delete(f"{small.server.url}/workers/{machine.name}")
    assert removed.status_code == 204

    async def is_back() -> bool:
        return len(machine.seen("registered")) == 2

    await eventually(is_back, 30, machine.told)
    await small.ready()
    await small.reach(await small.submit(command="true"), "done")
    assert len(machine.seen("registered")) == 2


async def test_fault_14_a_worker_that_was_superseded_stops_its_tasks_and_ends(
    small: Fleet, tmp_path: Path
) -> None:
    [machine] = await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    await ranks.submit("trap '' TERM; " + WORK, grace="10m", max_retries=1)
    await ranks.all_run(1)
    another = {"id": machine.name, "incarnation": "another", "protocol": "sync"}
    await small.client.post(f"{small.server.url}/workers/register", json=another)
    assert await machine.ended() == 1
    assert [line["event"] for line in machine.lines[-2:]] == ["worker superseded", "task ended"]
    await ranks.are_gone()


async def test_fault_14_an_end_that_nobody_heard_is_told_until_somebody_does(
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


async def test_fault_15_words_reach_the_program_as_they_were_written(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(1)
    words = ["two words", "it's", '"', "$HOME", "", "ü\n"]
    show = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"
    command = ["python3", "-c", show, str(tmp_path / "words"), *words]
    job = await small.submit(name="words", roles={"worker": {"command": command}})
    await small.reach(job, "done")
    assert json.loads((tmp_path / "words").read_text()) == words


async def test_fault_15_the_whole_tree_is_told_and_what_does_not_listen_is_killed(
    small: Fleet, tmp_path: Path
) -> None:
    await small.work(1)
    ranks = Ranks(small, tmp_path / "gang", size=1)
    listens = tmp_path / "listens.sh"
    listens.write_text(_LISTENING)
    deaf = tmp_path / "deaf.sh"
    deaf.write_text(_DEAF)
    await ranks.submit(f"sh {deaf} & setsid sh {listens} & sh {listens} & . {listens}", grace="2s")
    await ranks.all_run(1)

    async def are_up() -> bool:
        return len((ranks.marks / "up").read_text()) == 4

    await eventually(are_up, 30)
    await small.cancel(ranks.job)
    await small.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    assert (ranks.marks / "told").read_text() == "told\n" * 3
