"""The plain protocol with curl: a gang starts, fails, is stopped, and runs again."""

import base64

from phalanx.core.states import State
from tests.integration.api.serving import Running

WORKERS = ("w-1", "w-2", "w-3", "w-4")
SAVED = '{"step": 120, "of": "%s"}'


async def test_the_walk_of_the_seeds_with_curl_alone(on_each_store: Running) -> None:
    server = on_each_store
    gang, tasks = await submit_a_gang_that_is_blocked(server)
    await register_workers_and_see_it_reserved(server, gang)
    await claim_each_by_its_own_worker(server, gang)
    epoch = await fail_one_and_hear_the_others_told_to_stop(server, tasks)
    await save_and_acknowledge(server, gang, tasks, epoch)
    await see_it_placed_again_with_its_checkpoints(server, gang, tasks, epoch)
    for task in tasks:
        done = await server.curl("-X", "POST", f"/jobs/{task}/done?epoch={epoch + 1}")
        assert done.status == 200
    assert (await server.curl(f"/jobs/{gang}")).body["phase"] == "done"


async def states(server: Running, gang: str) -> list[str]:
    return [task["status"] for task in (await server.curl(f"/gangs/{gang}")).body]


async def submit_a_gang_that_is_blocked(server: Running) -> tuple[str, list[str]]:
    body = '{"command": "python train.py", "gang_size": 4}'
    submitted = await server.curl("-X", "POST", "/jobs", "-d", body)
    assert submitted.status == 201
    gang, tasks = submitted.body["gang_id"], submitted.body["tasks"]
    assert len(tasks) == 4
    assert await states(server, gang) == ["blocked"] * 4
    return gang, tasks


async def register_workers_and_see_it_reserved(server: Running, gang: str) -> None:
    for worker in WORKERS:
        body = f'{{"id": "{worker}", "exec_addr": "{worker}.example:9000"}}'
        registered = await server.curl("-X", "POST", "/workers/register", "-d", body)
        assert registered.status == 201
    await server.until(lambda cluster: cluster.gangs[gang].count(State.RESERVED) == 4)
    shown = (await server.curl(f"/gangs/{gang}")).body
    assert [task["status"] for task in shown] == ["reserved"] * 4
    assert [task["gang_index"] for task in shown] == [0, 1, 2, 3]
    assert sorted(task["worker_id"] for task in shown) == sorted(WORKERS)


async def claim_each_by_its_own_worker(server: Running, gang: str) -> None:
    stranger = await server.curl("-X", "POST", "/workers/register", "-d", '{"id": "stranger"}')
    assert stranger.status == 201
    assert (await server.curl("/jobs/next?worker_id=stranger")).status == 204
    for task in (await server.curl(f"/gangs/{gang}")).body:
        claimed = await server.curl(f"/jobs/next?worker_id={task['worker_id']}")
        assert claimed.status == 200
        assert claimed.body["id"] == f"{task['id']}@1"
        assert claimed.body["command"] == "python train.py"
        env = claimed.body["env"]
        assert (env["GANG_ID"], env["GANG_SIZE"]) == (gang, "4")
        assert env["GANG_INDEX"] == env["RANK"] == str(task["gang_index"])
        assert sorted(env["GANG_PEERS"].split(",")) == [f"{w}.example:9000" for w in WORKERS]
        assert "CHECKPOINT_DATA" not in env
        assert (await server.curl(f"/jobs/next?worker_id={task['worker_id']}")).status == 204


async def fail_one_and_hear_the_others_told_to_stop(server: Running, tasks: list[str]) -> int:
    assert await server.curl("-X", "POST", f"/jobs/{tasks[0]}/heartbeat") == (200, {})
    assert (await server.curl("-X", "POST", f"/jobs/{tasks[0]}/fail")).status == 200
    epoch = (await server.curl(f"/jobs/{tasks[1]}")).body["reservation_epoch"]
    for task in tasks[1:]:
        told = await server.curl("-X", "POST", f"/jobs/{task}/heartbeat")
        assert told == (200, {"action": "preempt", "preemption_epoch": epoch})
    assert isinstance(epoch, int)
    return epoch


async def save_and_acknowledge(server: Running, gang: str, tasks: list[str], epoch: int) -> None:
    for task in tasks[1:]:
        save = ("-X", "POST", "--data-binary", SAVED % task)
        wrong, right = f"epoch={epoch + 1}", f"epoch={epoch}"
        assert (await server.curl(*save, f"/jobs/{task}/checkpoint?{wrong}")).status == 409
        assert (await server.curl(*save, f"/jobs/{task}/checkpoint?{right}")).status == 200
        assert (await server.curl("-X", "POST", f"/jobs/{task}/preempted?{wrong}")).status == 409
        if task is tasks[-1]:
            assert await states(server, gang) == ["preempted"] * 3 + ["preempting"]
            # So that we see it blocked before it is placed again.
            assert (await server.curl("-X", "POST", f"/jobs/{gang}/hold")).status == 200
        assert (await server.curl("-X", "POST", f"/jobs/{task}/preempted?{right}")).status == 200
    assert await states(server, gang) == ["blocked"] * 4


async def see_it_placed_again_with_its_checkpoints(
    server: Running, gang: str, tasks: list[str], epoch: int
) -> None:
    assert (await server.curl("-X", "POST", f"/jobs/{gang}/release")).status == 200
    await server.until(lambda cluster: cluster.gangs[gang].count(State.RESERVED) == 4)
    given = {}
    for row in (await server.curl(f"/gangs/{gang}")).body:
        claimed = await server.curl(f"/jobs/next?worker_id={row['worker_id']}")
        assert claimed.body["reservation_epoch"] == epoch + 1
        given[claimed.body["id"].removesuffix(f"@{epoch + 1}")] = claimed.body["env"].get(
            "CHECKPOINT_DATA"
        )
    assert given[tasks[0]] is None  # whoever broke had no chance to save
    for task in tasks[1:]:
        assert base64.b64decode(given[task]) == (SAVED % task).encode()
