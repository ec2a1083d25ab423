"""A gang of eight tasks on eight real workers, with every kind of failure."""

import os
import signal
from pathlib import Path

import pytest

from tests.integration.agent.machines import Fleet
from tests.integration.agent.ranks import WORK, Ranks
from tests.integration.server.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_gang_runs_on_eight_workers_and_completes(fleet: Fleet, ranks: Ranks) -> None:
    await ranks.submit()
    started = await ranks.all_run(1)
    assert [start.rank for start in started] == list(range(8))
    done = await ranks.finish()
    assert done["failures"] == 0
    assert len(ranks.starts()) == 8


async def test_a_killed_rank_stops_its_gang_and_all_ranks_start_again(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit()
    started = await ranks.all_run(1)
    os.kill(started[3].pid, signal.SIGKILL)
    await ranks.all_run(2)
    assert (await ranks.finish())["failures"] == 1
    events = await fleet.events(ranks.job)
    [failed] = [event for event in events if event["kind"] == "TaskFailed"]
    assert "killed by SIGKILL" in failed["why"]
    assert [event["kind"] for event in events].count("GangStopping") == 1


async def test_a_worker_that_is_killed_with_its_tasks_fails_the_gang_which_starts_again(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit()
    await ranks.all_run(1)
    victim = fleet.machines[2]
    await victim.kill()
    await victim.start()
    await ranks.all_run(2)
    assert (await ranks.finish())["failures"] == 1
    [failed] = [event for event in await fleet.events(ranks.job) if event["kind"] == "TaskFailed"]
    assert failed["worker"] == victim.name


async def test_a_frozen_worker_is_lost_and_stops_its_old_task_when_it_resumes(
    impatient: Fleet, tmp_path: Path
) -> None:
    frozen, _ = await impatient.work(2)
    ranks = Ranks(impatient, tmp_path / "gang", size=2)
    await ranks.submit()
    await ranks.all_run(1)
    frozen.send(signal.SIGSTOP)
    await impatient.server.line("worker declared lost")
    await impatient.reach(ranks.job, "pending")
    # Its rank still runs and occupies the worker, so the gang must not start yet.
    assert len(ranks.living()) == 1
    frozen.send(signal.SIGCONT)
    await ranks.all_run(2)
    assert (await ranks.finish())["failures"] == 1


async def test_the_next_link_takes_over_the_tasks_of_a_killed_one(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit()
    await ranks.all_run(1)
    victim = fleet.machines[0]
    victim.send(signal.SIGKILL, spawner=False)
    await victim.ended()
    await victim.start()
    await fleet.ready()
    assert (await ranks.finish())["failures"] == 0
    assert len(ranks.starts()) == 8


async def test_the_next_link_reports_exits_that_happened_without_a_link(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit()
    await ranks.all_run(1)
    victim = fleet.machines[1]
    victim.send(signal.SIGKILL, spawner=False)
    await victim.ended()
    (ranks.marks / "finish").touch()
    await ranks.are_gone()
    await victim.start()
    assert (await fleet.reach(ranks.job, "done"))["failures"] == 0


async def test_a_killed_spawner_is_replaced_and_its_tasks_do_not_survive_it(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit('(setsid sh -c "sleep 1000" &); ' + WORK)
    await ranks.all_run(1)
    victim = fleet.machines[6]
    victim.send(signal.SIGKILL, link=False)
    await ranks.all_run(2)
    assert victim.logged("spawner died")
    await ranks.finish()


async def test_ranks_that_ignore_sigterm_are_killed_after_their_grace(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit(prepare="trap '' TERM", grace="1s")
    await ranks.all_run(1)
    await fleet.cancel(ranks.job)
    await fleet.reach(ranks.job, "cancelled")
    await ranks.are_gone()
    stopped = [event for event in await fleet.events(ranks.job) if event["kind"] == "TaskStopped"]
    assert len(stopped) == 8
    tasks = (await fleet.get(f"/jobs/{ranks.job}"))["tasks"]
    assert {task["exit"]["signal"] for task in tasks} == {signal.SIGKILL}


async def test_grandchildren_in_other_sessions_do_not_outlive_their_task(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit(
        """
        (setsid sh -c 'trap "" TERM; sleep 1000' &)
        setsid env -i sh -c 'sleep 1000' &
        [ "$RANK" = 4 ] && { while [ ! -e "$MARKS/finish" ]; do sleep 0.1; done; exit 3; }
        sleep 1000
        """,
        restart="never",
        grace="1s",
    )
    await ranks.all_run(1)
    (ranks.marks / "finish").touch()
    await fleet.reach(ranks.job, "failed")
    await ranks.are_gone()


async def test_a_missing_program_fails_the_job_and_is_named_in_the_error(fleet: Fleet) -> None:
    job = await fleet.submit(
        name="nowhere",
        max_retries=1,
        roles={"worker": {"replicas": 8, "command": ["no-such-program"], "resources": {"gpu": 1}}},
    )
    await fleet.reach(job, "failed")
    reasons = [e["why"] for e in await fleet.events(job) if e["kind"] == "TaskFailed"]
    assert any("cannot run no-such-program: No such file or directory" in why for why in reasons)


async def test_a_server_killed_at_the_start_barrier_starts_the_gang_once(
    fleet: Fleet, ranks: Ranks
) -> None:
    # One link is frozen, so its acceptance is missing and the gang stays at the start barrier.
    fleet.machines[7].send(signal.SIGSTOP, spawner=False)
    reserved = len(fleet.server.seen("gang reserved"))
    await ranks.submit()
    await fleet.server.line("gang reserved", count=reserved + 1)
    await fleet.server.kill()
    assert not ranks.starts()
    await fleet.serve()
    fleet.machines[7].send(signal.SIGCONT, spawner=False)
    epoch = (await fleet.reach(ranks.job, "running"))["attempt"]
    await ranks.all_run(epoch)
    assert (await ranks.finish())["failures"] == 0
    assert len(ranks.starts()) == 8


async def test_a_gang_keeps_running_while_its_server_is_down(fleet: Fleet, ranks: Ranks) -> None:
    await ranks.submit()
    await ranks.all_run(1)
    await fleet.server.kill()
    assert len(ranks.living()) == 8
    await fleet.serve()
    await fleet.ready()
    await fleet.reach(ranks.job, "running")
    assert (await ranks.finish())["failures"] == 0
    assert len(ranks.starts()) == 8


async def test_a_server_killed_while_a_gang_stops_finishes_the_stop_after_its_restart(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit(prepare='trap "" TERM; [ "$PHALANX_ATTEMPT" = 1 ] || trap - TERM')
    started = await ranks.all_run(1)
    drains = len(fleet.server.seen("gang drain started"))
    os.kill(started[0].pid, signal.SIGKILL)
    await fleet.server.line("gang drain started", count=drains + 1)
    await fleet.server.kill()
    await fleet.serve()
    await ranks.all_run(2)
    assert (await ranks.finish())["failures"] == 1
    assert (await ranks.kinds()).count("GangStopped") == 1


async def test_ranks_with_much_output_are_not_blocked_and_their_last_lines_arrive(
    fleet: Fleet, ranks: Ranks
) -> None:
    await ranks.submit("yes 0123456789 | head -c 40000000; echo; echo last line of $RANK")
    await fleet.reach(ranks.job, "done")
    await ranks.are_gone()

    async def is_cleaned_up() -> bool:
        return not any(list((each.state / "attempts").iterdir()) for each in fleet.machines)

    await eventually(is_cleaned_up, PATIENCE_S)
    for rank in range(8):
        answer = await fleet.client.get(f"{fleet.server.url}/jobs/{ranks.job}/logs?task={rank}")
        assert answer.text.endswith(f"\nlast line of {rank}\n"), answer.text[-200:]
