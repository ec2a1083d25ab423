"""Devices and ports of a worker: which ones a task is assigned, and that none is assigned twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.builders import a_worker
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict
from phalanx.core.events import Evicted, Placed, Placement, WorkerRegistered
from phalanx.core.model import Assignment, Protocol, place_of
from phalanx.core.node import DEVICE, Charge, Node
from phalanx.core.settings import CoreSettings
from phalanx.plan.state.from_cluster import node_spec


def a_machine(gpus: int = 4) -> Driver:
    driver = Driver()
    driver.worker("a", resources={"gpu": gpus * DEVICE})
    return driver


def running_job(driver: Driver, gpu: float) -> str:
    """A job with one task that runs on the worker."""
    job = driver.submit(spec(role={"resources": {"gpu": gpu}}))
    driver.run(job, "a")
    return job


def devices(driver: Driver, job: str) -> tuple[int, ...]:
    return driver.place_of(job, 0).devices


def refusal(driver: Driver, gpu: float) -> str:
    job = driver.submit(spec(role={"resources": {"gpu": gpu}}))
    return driver.refuse(Placed((Placement(job, 0, (Assignment(0, "a"),)),)), Conflict)


def test_whole_devices_are_assigned_lowest_first() -> None:
    driver = a_machine()
    assert [devices(driver, running_job(driver, gpu)) for gpu in (2, 1)] == [(0, 1), (2,)]


def test_released_devices_are_assigned_again() -> None:
    driver = a_machine()
    first, _ = running_job(driver, 1), running_job(driver, 1)
    driver.exit(first, 0)
    assert devices(driver, running_job(driver, 2)) == (0, 2)


def test_a_task_that_requests_no_device_gets_none() -> None:
    driver = a_machine()
    job = driver.submit(spec())
    driver.run(job, "a")
    assert devices(driver, job) == ()


def test_fractions_share_one_device() -> None:
    driver = a_machine()
    assert [devices(driver, running_job(driver, 0.25)) for _ in range(5)] == [(0,)] * 4 + [(1,)]


def test_a_fraction_goes_to_the_fullest_device_with_enough_capacity() -> None:
    driver = a_machine()
    half, large = running_job(driver, 0.5), running_job(driver, 0.75)
    assert (devices(driver, half), devices(driver, large)) == ((0,), (1,))
    assert devices(driver, running_job(driver, 0.25)) == (1,)
    assert devices(driver, running_job(driver, 0.25)) == (0,)


def test_a_whole_device_is_never_a_shared_one() -> None:
    driver = a_machine(2)
    running_job(driver, 0.1)
    assert devices(driver, running_job(driver, 1)) == (1,)
    assert "it has 900 gpu free, not 1000" in refusal(driver, 1)


def test_fractions_that_fit_in_sum_but_on_no_device_are_refused() -> None:
    driver = a_machine(2)
    running_job(driver, 0.6)
    running_job(driver, 0.6)
    assert refusal(driver, 0.5).endswith("free in total, but not on single GPUs")


def test_whole_devices_are_refused_when_all_are_shared_even_if_the_sum_would_suffice() -> None:
    driver = a_machine(3)
    assert [devices(driver, running_job(driver, 0.6)) for _ in range(3)] == [(0,), (1,), (2,)]
    assert driver.cluster.nodes["a"].free("gpu") == 1200
    assert refusal(driver, 1).endswith("free in total, but not on single GPUs")


def test_the_tasks_of_one_start_set_have_different_devices() -> None:
    driver = a_machine()
    job = driver.submit(spec(2, role={"resources": {"gpu": 2}}))
    driver.run(job, "a", "a")
    assert [place_of(task).devices for task in driver.gang(job).tasks] == [(0, 1), (2, 3)]


def test_a_residue_keeps_its_devices_and_its_port() -> None:
    driver = a_machine(2)
    job = running_job(driver, 1)
    driver.apply(Evicted(job, by="j-9", why="a test"))
    driver.advance(46)
    assert driver.residues[f"{job}.0", 1].devices == (0,)
    driver.run(job, "a")
    assert (devices(driver, job), driver.place_of(job, 0).port) == ((1,), 29501)
    driver.restart()
    assert driver.cluster.nodes["a"].devices == [0, 0]


def test_a_worker_that_returns_with_fewer_devices_assigns_none_twice() -> None:
    driver = a_machine(4)
    running_job(driver, 1)
    three = running_job(driver, 3)
    smaller = WorkerRegistered("a", "1", Protocol.SYNC, address="a", resources={"gpu": 2000})
    driver.apply(smaller)
    assert driver.cluster.nodes["a"].devices == [0, 0]
    driver.exit(three, 0)
    assert driver.cluster.nodes["a"].devices == [0, DEVICE]
    assert devices(driver, running_job(driver, 1)) == (1,)


REQUESTS = st.lists(
    st.one_of(st.integers(1, 999), st.integers(1, 3).map(lambda n: n * DEVICE)), max_size=30
)


@given(requests=REQUESTS, freed=st.lists(st.integers(0, 29)))
def test_assigned_and_free_devices_always_add_up(requests: list[int], freed: list[int]) -> None:
    node = Node(a_worker(resources={"gpu": 4 * DEVICE}, born_at=0))
    for n, thousandths in enumerate(requests):
        picked = node.pick_devices(thousandths)
        if picked is not None:
            node.charge((f"j.{n}", 1), Charge(0, {"gpu": thousandths}, picked))
        if n < len(freed):
            node.discharge((f"j.{freed[n]}", 1))
        assert all(0 <= left <= DEVICE for left in node.devices)
        assert sum(node.devices) == node.free("gpu")


# Ports


def test_only_the_first_task_of_a_start_set_has_a_rendezvous_port() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    job = driver.submit(spec(2))
    driver.place(job, "b", "a")
    assert [place_of(task).port for task in driver.gang(job).tasks] == [29500, None]


def test_ports_on_one_worker_differ() -> None:
    driver = Driver()
    driver.fleet("a", "b")
    jobs = [driver.submit(spec()) for _ in range(3)]
    for job, worker in zip(jobs, "aab", strict=True):
        driver.run(job, worker)
    assert [driver.place_of(job, 0).port for job in jobs] == [29500, 29501, 29500]


def test_ports_of_workers_that_share_a_host_differ() -> None:
    driver = Driver()
    driver.fleet("a", "b", address="10.0.0.1")
    driver.worker("c", address="10.0.0.2")
    jobs = [driver.submit(spec()) for _ in range(3)]
    for job, worker in zip(jobs, "abc", strict=True):
        driver.run(job, worker)
    assert [driver.place_of(job, 0).port for job in jobs] == [29500, 29501, 29500]


def test_a_worker_that_moves_to_another_host_shares_the_ports_there() -> None:
    driver = Driver()
    driver.worker("a", address="10.0.0.1")
    driver.worker("b", address="10.0.0.2")
    first = driver.submit(spec())
    driver.run(first, "a")
    driver.worker("b", address="10.0.0.1", incarnation="2")
    second = driver.submit(spec())
    driver.run(second, "b")
    assert driver.place_of(second, 0).port == 29501


def test_a_port_is_free_again_when_its_attempt_has_ended() -> None:
    driver = Driver()
    driver.worker("a")
    first, second = driver.submit(spec()), driver.submit(spec())
    driver.run(first, "a")
    driver.exit(first, 0)
    driver.run(second, "a")
    assert driver.place_of(second, 0).port == 29500


def test_a_worker_without_a_free_port_still_runs_jobs() -> None:
    driver = Driver(CoreSettings(ports=(29500, 29500)))
    driver.worker("a")
    first, second = driver.submit(spec()), driver.submit(spec())
    driver.run(first, "a")
    driver.run(second, "a")
    assert driver.place_of(second, 0).port is None


@pytest.mark.parametrize("resource", ["cpu", "memory", "vram_mb", "licence"])
def test_any_resource_is_charged_and_refused_beyond_its_capacity(resource: str) -> None:
    driver = Driver()
    role: dict[str, object] = {"resources": {resource: 2}}
    amount = spec(role=role).roles[0].resources[resource]
    driver.worker("a", resources={resource: amount})
    job = driver.submit(spec(role=role))
    driver.run(job, "a")
    assert driver.cluster.nodes["a"].free(resource) == 0
    second = driver.submit(spec(role=role))
    driver.refuse(Placed((Placement(second, 0, (Assignment(0, "a"),)),)), Conflict)
    driver.exit(job, 0)
    driver.run(second, "a")


def test_charges_above_the_capacity_of_a_worker_count_as_used() -> None:
    worker = a_worker("a", resources={"gpu": 4 * DEVICE})
    node = Node(worker)
    for task, charged in enumerate((2.0, 1.0, 0.5)):
        thousandths = int(charged * DEVICE)
        picked = node.pick_devices(thousandths)
        assert picked is not None
        node.charge((f"t{task}", 0), Charge(0, {"gpu": thousandths}, picked))
    node.replace_worker(replace(worker, resources={"gpu": 2 * DEVICE}))
    machine = node_spec(node)
    assert machine.used == {"gpu": 3500}
    assert machine.partial == {3: 500}
