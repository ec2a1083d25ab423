"""One server on SQLite: killed, stopped, and joined by a second one."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

from tests.integration.server.load import FAST, a_pair, loaded
from tests.integration.server.processes import Start, environment, phalanx, sqlite_at
from tests.integration.server.traffic import Fleet, PlainWorker, Submitter, all_done
from tests.integration.server.waiting import PATIENCE_S, eventually, pass_time, within
from tests.plain_http import async_http_client
from tests.preloaded import COMMAND


async def test_a_server_killed_under_load_and_started_again_has_lost_nothing(
    start: Start, tmp_path: Path
) -> None:
    first = await start(sqlite_at(tmp_path), "first", *FAST)
    await first.line("leading")
    async with loaded(first) as load:
        await first.kill()
        again = await start(sqlite_at(tmp_path), "again", *FAST)
        load.fleet.urls[:] = [again.url]
        await again.line("leading")
        await load.more(10)
    assert not again.seen("worker lost")


async def test_a_killed_server_leads_again_as_soon_as_it_is_restarted(
    start: Start, tmp_path: Path
) -> None:
    """Its lease of ten seconds is not over, but its lock went with its process."""
    first = await start(sqlite_at(tmp_path), "first")
    await first.line("leading")
    await first.kill()
    again = await start(sqlite_at(tmp_path), "again")
    assert (await again.line("leading"))["term"] == 2
    assert not again.seen("standing by")


async def test_a_frozen_server_keeps_a_second_one_from_leading_on_the_same_file(
    start: Start, tmp_path: Path
) -> None:
    first, second = await a_pair(start, sqlite_at(tmp_path), "--lease=2s")
    first.send(signal.SIGSTOP)
    await pass_time(3)
    assert not second.seen("leading")
    first.send(signal.SIGCONT)
    await eventually(first.ready, PATIENCE_S)


async def test_plain_workers_outlive_a_killed_server_too(start: Start, tmp_path: Path) -> None:
    first = await start(sqlite_at(tmp_path), "first", *FAST)
    await first.line("leading")
    fleet = Fleet(first.url)
    workers = [PlainWorker(fleet, f"w-{n}") for n in range(3)]
    load = [Submitter(fleet, command="true") for _ in range(4)]
    await asyncio.gather(*(each.more(20) for each in load))
    await first.kill()
    again = await start(sqlite_at(tmp_path), "again", *FAST)
    fleet.urls[:] = [again.url]
    await asyncio.gather(*(each.more(20) for each in load))
    jobs = [job for each in load for job in await each.stop()]
    await all_done(fleet, jobs)
    ran = Counter([attempt for worker in workers for attempt in await worker.stop()])
    assert set(ran.values()) == {1}, "an attempt was given out twice"
    assert {task for task, _ in ran} >= {f"{job}.0" for job in jobs}
    await fleet.close()


async def test_a_second_server_on_the_same_file_stands_by_and_takes_over(
    start: Start, tmp_path: Path
) -> None:
    first, second = await a_pair(start, sqlite_at(tmp_path))
    assert (await second.line("standing by"))["url"] == first.url
    await eventually(first.ready, PATIENCE_S)
    assert not await second.ready()
    first.send(signal.SIGTERM)
    assert await first.ended() == 0
    await second.line("leading")
    await eventually(second.ready, PATIENCE_S)


async def test_sigterm_answers_accepted_commands_ends_held_calls_and_exits(
    start: Start, tmp_path: Path
) -> None:
    server = await start(sqlite_at(tmp_path), "only", "--sync-wait=1m", "--lost-after=5m")
    await server.line("leading")
    async with loaded(server) as load:
        async with async_http_client(server.url) as client:
            claim = {"worker_id": "idle", "wait": "60"}
            assert (await client.post("/workers/register", json={"id": "idle"})).is_success
            held = [asyncio.create_task(client.get("/jobs/next", params=claim)) for _ in range(2)]

            async def are_held() -> bool:
                # This worker has as many slots as open calls.
                workers = {each["id"]: each for each in (await client.get("/workers")).json()}
                return bool(workers["idle"]["slots"] == len(held))

            await eventually(are_held, PATIENCE_S)
            async with client.stream("GET", "/events") as stream:
                assert stream.status_code == 200
                server.send(signal.SIGTERM)
                await within(PATIENCE_S, stream.aread())
            answers = await within(PATIENCE_S, asyncio.gather(*held))
        assert await server.ended() == 0
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] in ("stopping", "no_leader")
        assert not [line for line in server.lines if line["level"] in ("error", "critical")]
        assert server.others == []
        again = await start(sqlite_at(tmp_path), "again")
        load.fleet.urls[:] = [again.url]
        await again.line("leading")


async def test_an_address_in_use_is_reported(start: Start, tmp_path: Path) -> None:
    first = await start(sqlite_at(tmp_path), "first")
    port = first.url.rpartition(":")[2]
    status, out, err = await phalanx("serve", "--store=memory", f"--port={port}")
    assert (status, out) == (2, "")
    assert f"cannot listen on 127.0.0.1 port {port}" in err
    assert "Traceback" not in err


async def test_a_store_in_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped"
    for command in (("serve", "--port=0"), ("token", "list")):
        status, out, err = await phalanx(*command, f"--store=sqlite:{mistyped}/phalanx.db")
        assert (status, out) == (2, "")
        assert f"there is no directory {mistyped}; create it with `mkdir" in err
        assert "Traceback" not in err
    assert not mistyped.exists()


async def test_the_default_directory_is_created_for_its_user_alone(tmp_path: Path) -> None:
    state = tmp_path / "state" / "phalanx"
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve", "--port=0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(STATE_DIRECTORY=str(state)),
    )
    assert process.stdout is not None
    await within(PATIENCE_S, process.stdout.readuntil(b"Ctrl-C"))
    process.kill()
    await process.communicate()
    assert state.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}


async def test_the_start_message_fits_on_a_screen(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "serve",
        f"--store={sqlite_at(tmp_path)}",
        "--port=0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(),
    )
    assert process.stdout is not None
    said = b""
    while b"Ctrl-C" not in said:
        line = await within(PATIENCE_S, process.stdout.readline())
        assert line, said
        said += line
    process.send_signal(signal.SIGINT)
    assert await within(PATIENCE_S, process.wait()) == 0
    text = said.decode()
    assert "address  http://127.0.0.1:" in text
    assert f"store    {sqlite_at(tmp_path)}" in text
    assert "role     leader, term 1" in text
    assert len(text.splitlines()) < 24


async def test_a_log_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "serve",
            f"--store={sqlite_at(tmp_path)}",
            "--port=0",
            stdout=asyncio.subprocess.PIPE,
            stderr=full,
            env=environment(),
        )
    assert process.stdout is not None
    said = b""
    while b"Ctrl-C" not in said:
        line = await within(PATIENCE_S, process.stdout.readline())
        assert line, said
        said += line
    url = said.decode().partition("address  ")[2].partition("\n")[0]
    async with async_http_client(url) as client:
        for _ in range(100):
            assert (await client.post("/jobs", json={"command": "true"})).is_success
    process.send_signal(signal.SIGTERM)
    await within(PATIENCE_S, process.wait())


async def test_old_finished_jobs_are_removed(start: Start, tmp_path: Path) -> None:
    server = await start(sqlite_at(tmp_path), "only", "--retention=2s")
    await server.line("leading")
    async with async_http_client(server.url) as client:
        job = (await client.post("/jobs", json={"command": "true"})).json()["id"]
        kept = (await client.post("/jobs", json={"command": "true"})).json()["id"]
        assert (await client.delete(f"/jobs/{job}")).is_success
        assert (await server.line("pruned"))["jobs"] == 1
        assert (await client.get(f"/jobs/{job}")).status_code == 404
        assert (await client.get(f"/jobs/{kept}")).status_code == 200
