"""Queues form a tree with `default` in it, and no change leaves a job without its queue."""

import pytest
from msgspec.structs import replace
from tests.driver import Driver, spec

from phalanx.core.errors import Conflict, Invalid, NotPermitted, Unknown
from phalanx.core.events import (
    CancelRequested,
    CronSet,
    QueueRemoved,
    QueueSet,
    QueuesSet,
    Submitted,
)
from phalanx.core.model import Queue
from phalanx.core.records import CronDenied, QueueChanged, QueueCreated


def test_there_is_always_a_default_queue() -> None:
    driver = Driver()
    assert list(driver.cluster.queues) == ["default"]
    driver.restart()
    assert list(driver.cluster.queues) == ["default"]
    assert "cannot be removed" in driver.refuse(QueueRemoved("default"), Conflict)


def test_a_queue_is_set_and_changed() -> None:
    driver = Driver()
    assert driver.apply(QueueSet(Queue("q", weight=2))).replan
    driver.apply(QueueSet(Queue("q", weight=3, limit={"gpu": 8000})))
    assert driver.cluster.queues["q"] == Queue("q", weight=3, limit={"gpu": 8000})
    assert not driver.apply(QueueSet(Queue("q", weight=3, limit={"gpu": 8000}))).has_rows


def test_the_default_queue_can_be_given_a_weight_that_lasts() -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("default", weight=5)))
    driver.restart()
    assert driver.cluster.queues["default"].weight == 5


def test_a_parent_must_exist() -> None:
    driver = Driver()
    refusal = driver.refuse(QueueSet(Queue("q", parent="r")), Invalid)
    assert refusal == "parent is r, which does not exist; set that queue first"


@pytest.mark.parametrize("parent", ["a", "b", "c"])
def test_a_queue_is_never_below_itself(parent: str) -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("a")))
    driver.apply(QueueSet(Queue("b", parent="a")))
    driver.apply(QueueSet(Queue("c", parent="b")))
    refusal = driver.refuse(QueueSet(Queue("a", parent=parent)), Invalid)
    assert refusal == f"parent is {parent}, which is below a itself"


def test_a_queue_with_children_stays() -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("a")))
    driver.apply(QueueSet(Queue("b", parent="a")))
    assert "has the child b" in driver.refuse(QueueRemoved("a"), Conflict)
    driver.apply(QueueRemoved("b"))
    driver.apply(QueueRemoved("a"))
    assert list(driver.cluster.queues) == ["default"]


def test_a_queue_with_unfinished_jobs_stays() -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("q")))
    job = driver.submit(spec(queue="q"))
    assert f"has unfinished jobs, among them {job}" in driver.refuse(QueueRemoved("q"), Conflict)
    driver.apply(CancelRequested(job))
    assert driver.apply(QueueRemoved("q")).replan


def test_an_unknown_queue_cannot_be_removed() -> None:
    Driver().refuse(QueueRemoved("q"), Unknown)


def test_several_queues_are_set_at_once_with_their_parents() -> None:
    driver = Driver()
    child, parent = Queue("vision", parent="research"), Queue("research")
    driver.apply(QueuesSet((child, parent), by="ada"))
    assert {"vision", "research"} <= driver.cluster.queues.keys()
    assert [(type(r), r.by) for r in queue_records(driver)] == [(QueueCreated, "ada")] * 2
    driver.apply(QueuesSet((child, parent), by="ada"))
    assert len(driver.records) == 2
    driver.apply(QueuesSet((replace(child, weight=2), parent), by="bob"))
    changed = queue_records(driver)[-1]
    assert (type(changed), changed.queue, changed.by) == (QueueChanged, "vision", "bob")


def queue_records(driver: Driver) -> list[QueueCreated | QueueChanged]:
    return [r for r in driver.records if isinstance(r, QueueCreated | QueueChanged)]


def test_if_one_of_several_queues_is_wrong_none_is_set() -> None:
    driver = Driver()
    bad = (Queue("a"), Queue("b", parent="nowhere"))
    assert "b.parent is nowhere" in driver.refuse(QueuesSet(bad), Invalid)
    ring = (Queue("a", parent="b"), Queue("b", parent="a"))
    assert "below a itself" in driver.refuse(QueuesSet(ring), Invalid)


@pytest.mark.parametrize("namespace", ["ml", "team-a", "team-a-b"])
def test_a_queue_admits_the_jobs_of_its_namespaces(namespace: str) -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("training", namespaces=("ml", "team-*"))))
    driver.submit(spec(queue="training", namespace=namespace))


@pytest.mark.parametrize("namespace", ["web", "ml2", "my-team-a"])
def test_a_queue_refuses_the_jobs_of_other_namespaces(namespace: str) -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("ml-training", namespaces=("ml", "team-*"))))
    job = spec(queue="ml-training", namespace=namespace)
    refusal = driver.refuse(Submitted("j-1", job), NotPermitted)
    assert refusal.startswith(f"namespace {namespace} may not use queue ml-training")
    assert refusal.endswith("the namespaces of queue ml-training are: ml, team-*")


def test_a_child_queue_is_bound_to_the_namespaces_of_its_parents() -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("parent", namespaces=("ml",))))
    driver.apply(QueueSet(Queue("child", parent="parent")))
    driver.submit(spec(queue="child", namespace="ml"))
    refusal = driver.refuse(Submitted("j-1", spec(queue="child", namespace="web")), NotPermitted)
    assert "the namespaces of queue parent are: ml" in refusal


def test_a_cron_of_a_refused_namespace_is_denied_when_it_is_due() -> None:
    driver = Driver()
    driver.apply(QueueSet(Queue("training")))
    schedule = {"cron": "* * * * *"}
    nightly = spec(name="nightly", namespace="web", queue="training", schedule=schedule)
    driver.apply(CronSet(nightly))
    driver.apply(QueueSet(Queue("training", namespaces=("ml",))))
    driver.advance(61)
    [denied] = [record for record in driver.records if isinstance(record, CronDenied)]
    assert denied.why.startswith("namespace web may not use queue training")
    driver.refuse(CronSet(nightly), NotPermitted)
