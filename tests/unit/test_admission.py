"""Limits on what one namespace submits, and on the calls of one caller."""

from datetime import UTC

import pytest
from tests.driver import Driver, spec

from phalanx.core.cluster import Cluster
from phalanx.core.errors import LimitReached
from phalanx.core.events import CancelRequested, CronRemoved, CronSet, ImagesPinned, Submitted
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.validation import job_spec
from phalanx.engine.admission import CallLimit, SubmitRate
from phalanx.engine.errors import Overloaded, TooManyRequests

LIMITED = CoreSettings(namespace_jobs=3, namespace_tasks=10)


def a_cluster() -> Cluster:
    return Cluster(LIMITED)


def a_cron(name: str) -> CronSet:
    document = {
        "name": name,
        "schedule": {"cron": "0 2 * * *"},
        "roles": {"worker": {"command": "true"}},
    }
    return CronSet(job_spec(document), "", zone=UTC)


def test_a_namespace_has_a_limited_number_of_unfinished_jobs() -> None:
    cluster = a_cluster()
    for n in range(3):
        cluster.apply(Submitted(f"j-{n}", spec()), 1)
    with pytest.raises(LimitReached) as refused:
        cluster.apply(Submitted("j-3", spec()), 1)
    assert str(refused.value) == (
        "namespace default has 3 unfinished jobs and crons, and 1 more would exceed the limit of 3"
        " (namespace_jobs); wait until jobs have ended, or cancel some"
    )
    cluster.apply(Submitted("j-4", spec(namespace="other")), 1)
    cluster.apply(CancelRequested("j-0"), 1)
    cluster.apply(Submitted("j-3", spec()), 1)


def test_a_namespace_has_a_limited_number_of_tasks() -> None:
    cluster = a_cluster()
    cluster.apply(Submitted("j-1", spec(8)), 1)
    with pytest.raises(LimitReached, match="has 8 tasks of its jobs, and 3 more"):
        cluster.apply(Submitted("j-2", spec(3)), 1)
    cluster.apply(Submitted("j-2", spec(2)), 1)


def test_crons_count_as_jobs() -> None:
    cluster = a_cluster()
    for name in ("a", "b", "c"):
        cluster.apply(a_cron(name), 1)
    cluster.apply(a_cron("c"), 1)  # which exists
    with pytest.raises(LimitReached):
        cluster.apply(a_cron("d"), 1)
    with pytest.raises(LimitReached):
        cluster.apply(Submitted("j-1", spec()), 1)
    cluster.apply(CronRemoved("default/a"), 1)
    cluster.apply(Submitted("j-1", spec()), 1)


def test_the_next_leader_counts_the_same() -> None:
    driver = Driver()
    driver.apply(Submitted("j-1", spec(4)))
    driver.apply(a_cron("a"))
    driver.apply(Submitted("j-2", spec(2)))
    driver.apply(CancelRequested("j-1"))
    before = dict(driver.cluster.loads)
    driver.restart()
    assert driver.cluster.loads == before
    assert before["default"][:2] == (2, 2)


def test_a_namespace_has_specifications_of_limited_size() -> None:
    cluster = Cluster(CoreSettings(namespace_bytes=100_000))
    large = spec(role={"command": "x" * 60_000})
    cluster.apply(Submitted("j-1", large), 1)
    with pytest.raises(LimitReached, match=r"limit of 100000 .namespace_size"):
        cluster.apply(Submitted("j-2", large), 1)
    cluster.apply(Submitted("j-2", spec()), 1)
    cluster.apply(CancelRequested("j-1"), 1)
    cluster.apply(Submitted("j-3", large), 1)


def test_a_job_with_pinned_images_counts_with_its_size_until_it_ends() -> None:
    cluster = Cluster(CoreSettings(namespace_bytes=100_000))
    cluster.apply(Submitted("j-1", spec(role={"image": "library/busybox:1"})), 1)
    before = cluster.load_of("default").size_bytes
    pinned = "library/busybox@sha256:" + 64 * "0"
    cluster.apply(ImagesPinned("j-1", {"library/busybox:1": pinned}), 1)
    assert cluster.load_of("default").size_bytes == before + len(pinned) - len("library/busybox:1")
    cluster.apply(CancelRequested("j-1"), 1)
    assert not cluster.loads


def test_a_cron_that_replaces_another_counts_with_its_size() -> None:
    cluster = Cluster(CoreSettings(namespace_bytes=100_000))

    def cron(size: int) -> CronSet:
        role: dict[str, object] = {"command": "x" * size}
        return CronSet(spec(name="c", role=role, schedule={"cron": "0 2 * * *"}), zone=UTC)

    cluster.apply(cron(60_000), 1)
    cluster.apply(cron(70_000), 1)
    with pytest.raises(LimitReached, match=r"limit of 100000 .namespace_size"):
        cluster.apply(cron(120_000), 1)
    cluster.apply(cron(10), 1)


def test_a_namespace_submits_a_number_of_tasks_at_once_and_then_so_many_per_second() -> None:
    rate = SubmitRate(100)
    rate.take([spec(100)] * 10, 0.0)
    with pytest.raises(TooManyRequests) as refused:
        rate.take([spec()], 0.0)
    assert refused.value.retry_after_s == 1
    assert "namespace default submits more than 100 tasks per second" in str(refused.value)
    rate.take([spec(namespace="other")], 0.0)
    rate.take([spec(300)], 0.1)  # a large submission takes what comes later
    with pytest.raises(TooManyRequests) as refused:
        rate.take([spec()], 0.2)
    assert refused.value.retry_after_s == 3
    rate.take([spec()], 3.2)


def test_without_a_rate_nothing_is_refused() -> None:
    SubmitRate(None).take([spec(10_000)] * 1000, 0.0)


def test_quiet_namespaces_are_forgotten() -> None:
    rate = SubmitRate(1)
    for n in range(1100):
        rate.take([spec(namespace=f"n{n}")], float(n))
    assert len(rate._buckets) <= 1000


def test_calls_in_progress_are_limited_for_one_caller_and_for_all() -> None:
    limit = CallLimit("forecasts", most=3, most_of_one=2)
    with limit.call("a"), limit.call("a"):
        with pytest.raises(TooManyRequests, match="2 forecasts of this caller are in progress"):
            limit.call("a").__enter__()
        with limit.call("b"), pytest.raises(Overloaded, match="3 forecasts are in progress"):
            limit.call("c").__enter__()
    with limit.call("c"):
        pass
