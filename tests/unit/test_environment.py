"""The environment variables that describe a gang to its processes."""

import json
from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.environment import GangEnvironment
from phalanx.core.events import Claimed
from phalanx.core.model import host_of
from phalanx.core.spec.references import literal
from phalanx.core.spec.validation import job_spec
from phalanx.engine.agent_instructions import GangEnvironments, instructions_for

ROLES: dict[str, Any] = {
    "ps": {"command": "serve"},
    "worker": {"command": "train", "replicas": 3, "min": 2},
}
ALONE: dict[str, Any] = {"roles": {"worker": {"command": "train"}}}


def environments(driver: Driver, job: str) -> dict[int, dict[str, str]]:
    gang = driver.gang(job)
    world = GangEnvironment(gang, driver.cluster.nodes)
    return {task.index: world.environment(task) for task in gang.members()}


def values(driver: Driver, job: str, name: str) -> list[str]:
    return [env[name] for env in environments(driver, job).values()]


def placed(document: dict[str, Any], *workers: str, **fleet: Any) -> tuple[Driver, str]:
    driver = Driver()
    driver.fleet(*dict.fromkeys(workers), **fleet)
    job = driver.submit(job_spec(document), "j-1")
    driver.place(job, *workers)
    return driver, job


def test_ranks_are_dense_role_by_role_lowest_task_first() -> None:
    driver, job = placed({"roles": ROLES}, "a", "b", "a", "c")
    assert values(driver, job, "RANK") == ["0", "1", "2", "3"]
    assert values(driver, job, "PHALANX_ROLE") == ["ps", "worker", "worker", "worker"]
    assert set(values(driver, job, "WORLD_SIZE")) == {"4"}


def test_local_ranks_count_on_each_node_and_node_ranks_count_nodes() -> None:
    driver, job = placed({"roles": ROLES}, "b", "a", "b", "c")
    assert values(driver, job, "LOCAL_RANK") == ["0", "0", "1", "0"]
    assert values(driver, job, "NODE_RANK") == ["0", "1", "0", "2"]


def test_ranks_stay_dense_when_an_elastic_gang_starts_with_a_part() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(job_spec({"roles": ROLES}))
    driver.place(job, "a", "b", "c", tasks=[0, 1, 3])
    assert values(driver, job, "PHALANX_TASK") == [f"{job}.0", f"{job}.1", f"{job}.3"]
    assert values(driver, job, "RANK") == ["0", "1", "2"]
    assert set(values(driver, job, "WORLD_SIZE")) == {"3"}
    assert set(values(driver, job, "GANG_PEERS")) == {
        "a.example:7000,b.example:7000,c.example:7000"
    }


def test_a_very_large_gang_gets_no_list_of_hosts() -> None:
    document = {"roles": {"worker": {"replicas": 1001, "command": "train"}}}
    driver, job = placed(document, *["a"] * 1001)
    for env in environments(driver, job).values():
        assert env["WORLD_SIZE"] == "1001"
        assert "GANG_PEERS" not in env


def test_the_gang_variables_equal_the_rank_variables() -> None:
    driver, job = placed({"roles": ROLES}, "a", "b", "a", "c")
    for rank, env in environments(driver, job).items():
        assert env["GANG_ID"] == env["PHALANX_JOB"] == job
        assert (env["GANG_SIZE"], env["GANG_INDEX"]) == ("4", str(rank))
        # Each task on a worker has a port of its own, from that of the worker's address on.
        peers = ["a.example:7000", "b.example:7000", "a.example:7001", "c.example:7000"]
        assert env["GANG_PEERS"].split(",") == peers


def test_the_rendezvous_is_on_the_node_of_rank_zero() -> None:
    driver, job = placed({"roles": ROLES}, "c", "b", "a", "c")
    assert set(values(driver, job, "MASTER_ADDR")) == {"c.example"}
    assert set(values(driver, job, "MASTER_PORT")) == {"29500"}


def test_a_process_knows_its_attempt() -> None:
    driver, job = placed(ALONE | {"max_retries": 9}, "a")
    assert values(driver, job, "PHALANX_ATTEMPT") == ["1"]
    driver.start(job)
    driver.fail(job, 0)
    driver.run(job, "a")
    assert values(driver, job, "PHALANX_ATTEMPT") == ["2"]


def test_a_process_sees_the_devices_it_was_given() -> None:
    role = {"command": "train", "replicas": 2, "resources": {"gpu": 2}}
    driver, job = placed({"roles": {"worker": role}}, "a", "a", resources={"gpu": 4000})
    assert values(driver, job, "CUDA_VISIBLE_DEVICES") == ["0,1", "2,3"]


def test_a_process_with_a_fraction_sees_its_one_device() -> None:
    role = {"command": "train", "replicas": 3, "resources": {"gpu": 0.5}}
    driver, job = placed({"roles": {"worker": role}}, "a", "a", "a", resources={"gpu": 2000})
    assert values(driver, job, "CUDA_VISIBLE_DEVICES") == ["0", "0", "1"]


def test_a_process_without_a_device_sees_none_on_a_machine_with_devices() -> None:
    driver, job = placed(ALONE, "a", resources={"gpu": 2000})
    assert values(driver, job, "CUDA_VISIBLE_DEVICES") == [""]


def test_on_a_machine_without_devices_no_variable_is_set() -> None:
    driver, job = placed(ALONE, "a")
    assert "CUDA_VISIBLE_DEVICES" not in environments(driver, job)[0]


@pytest.mark.parametrize(
    ("address", "peer"),
    [("", "a"), (":7000", "a:7000"), ("::1", "::1"), ("[::1]", "::1"), ("[::1]:80", "[::1]:80")],
)
def test_peers_are_never_blank(address: str, peer: str) -> None:
    driver = Driver()
    driver.worker("a", address=address)
    driver.worker("b", address="10.0.0.2")
    job = driver.submit(spec(2))
    driver.place(job, "a", "b")
    assert set(values(driver, job, "GANG_PEERS")) == {f"{peer},10.0.0.2"}


def test_a_task_claimed_without_a_worker_is_its_own_peer() -> None:
    driver = Driver()
    job = driver.submit(spec())
    driver.apply(Claimed(f"{job}.0"))
    env = environments(driver, job)[0]
    assert env["GANG_PEERS"] == "127.0.0.1"
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["NODE_RANK"]) == (
        "0",
        "1",
        "0",
        "0",
    )


def test_a_task_that_restarts_alone_keeps_its_rank_beside_done_tasks() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    job = driver.submit(spec(3, restart="task", match="waiting-running-succeed"))
    driver.run(job, "a", "b", "c")
    driver.exit(job, 0)
    driver.fail(job, 1)
    driver.place(job, "c")
    env = environments(driver, job)[1]
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("1", "3", "0")
    assert env["GANG_PEERS"] == "a.example:7000,c.example:7000,c.example:7001"
    assert env["MASTER_ADDR"] == "a.example"


def test_the_environment_is_the_same_after_a_change_of_leader() -> None:
    driver, job = placed({"roles": ROLES}, "a", "b", "a", "c")
    before = environments(driver, job)
    driver.restart()
    assert environments(driver, job) == before


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("gpu-7", "gpu-7"),
        ("gpu-7:7000", "gpu-7"),
        ("10.0.0.1:7000", "10.0.0.1"),
        ("[fe80::1]:7000", "fe80::1"),
        ("fe80::1", "fe80::1"),
        ("gpu-7:", "gpu-7:"),
        ("", ""),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


def with_variables(**env: str) -> dict[str, Any]:
    return {"roles": ROLES | {"worker": {**ROLES["worker"], "env": env}}}


@pytest.mark.parametrize(
    ("written", "values_of_x"),
    [
        ("$(task.index)", ["0", "1", "2"]),
        ("$(task.ordinal)", ["0", "1", "2"]),
        ("$(count.worker) of $(count.ps)", ["3 of 1"] * 3),
        ("$(hosts.worker)", ["b.example,a.example,c.example"] * 3),
        ("$(hosts.ps):80", ["a.example:80"] * 3),
        ("$(addresses.worker.9)", ['["b.example:9", "a.example:9", "c.example:9"]'] * 3),
        ("$$(task.index)", ["$(task.index)"] * 3),
        ("$(date) $HOME $(RANK)", ["$(date) $HOME $(RANK)"] * 3),
    ],
)
def test_a_variable_may_refer_to_facts_known_at_the_start(
    written: str, values_of_x: list[str]
) -> None:
    driver, job = placed(with_variables(X=written), "a", "b", "a", "c")
    assert [env.get("X") for env in environments(driver, job).values()] == [None, *values_of_x]


def test_every_task_has_an_address_of_its_own_where_workers_and_jobs_share_a_host() -> None:
    driver = Driver()
    for worker in ("a", "b"):
        driver.worker(worker, address="laptop")
    lists = []
    for number in range(2):
        document = with_variables(X="$(addresses.worker.2222)", Y="$(addresses.worker.3222)")
        job = driver.submit(job_spec(document), f"j-{number}")
        driver.place(job, "a", "a", "b", "b")
        env = environments(driver, job)[1]
        lists.append([json.loads(env[name]) for name in "XY"])
    assert lists == [
        [[f"laptop:{base + n}" for n in range(start, start + 3)] for base in (2222, 3222)]
        for start in (0, 3)
    ]
    driver.restart()
    assert json.loads(environments(driver, "j-1")[1]["X"]) == lists[1][0]


def test_the_address_of_a_task_is_not_its_rendezvous_port() -> None:
    driver, job = placed(with_variables(X="$(addresses.ps.29500)"), "a", "b", "a", "c")
    env = environments(driver, job)[1]
    assert (env["X"], env["MASTER_PORT"]) == ('["a.example:29501"]', "29500")


def test_references_count_only_those_that_started() -> None:
    driver = Driver()
    driver.fleet("a", "b", "c")
    document = with_variables(X="$(task.index) of $(count.worker)", Y="$(task.ordinal)")
    job = driver.submit(job_spec(document))
    driver.place(job, "a", "b", "c", tasks=[0, 1, 3])
    workers = list(environments(driver, job).values())[1:]
    assert [env["X"] for env in workers] == ["0 of 2", "1 of 2"]
    assert [env["Y"] for env in workers] == ["0", "2"], "the same in every attempt"


def test_variables_of_the_gang_override_those_of_the_user() -> None:
    driver, job = placed(with_variables(RANK="9", MINE="1"), "a", "b", "a", "c")
    env = environments(driver, job)[1]
    assert (env["RANK"], env["MINE"]) == ("1", "1")


@pytest.mark.parametrize("text", ["$(task.index)", "$$(hosts.ps)", "$(date)", "$$", "a"])
def test_a_literal_is_resolved_to_itself(text: str) -> None:
    driver, job = placed(with_variables(X=literal(text)), "a", "b", "a", "c")
    assert environments(driver, job)[1]["X"] == text


def test_the_workers_of_a_gang_share_its_environment_until_the_gang_or_a_worker_changes() -> None:
    driver, job = placed({"roles": ROLES}, "a", "b", "a", "c")
    shared = GangEnvironments()

    def shared_by(worker: str) -> GangEnvironment:
        instructions_for(driver.cluster, driver.cluster.nodes[worker], shared)
        return shared.of(driver.gang(job), driver.cluster.nodes)

    first = shared_by("a")
    assert shared_by("b") is first
    driver.worker("c", address="10.9.9.9:7000", incarnation="c")
    moved = shared_by("a")
    assert moved is not first
    assert "10.9.9.9:7000" in moved.environment(driver.gang(job).tasks[0])["GANG_PEERS"]
    driver.accept(job)
    assert shared_by("a") is not moved
