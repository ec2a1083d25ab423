"""Crons under a virtual clock: each run once, whatever happens in between."""

from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.driver import Driver, spec

from phalanx.core import events
from phalanx.core.errors import Conflict, Invalid, Unknown
from phalanx.core.handlers import crons
from phalanx.core.model import Cron, Job, Phase, Queue
from phalanx.core.records import CronDenied, CronFired, CronRecord, JobSubmitted, kind_of
from phalanx.core.spec.job import JobSpec
from phalanx.core.states import State
from phalanx.core.time_units import SECOND
from phalanx.engine.cron_lookups import CronLookups, CronVerdict
from phalanx.manifest.bundle import read

HOUR_S = 3600
NIGHTLY = "default/nightly"
#: The driver's clock begins on 2023-11-14 at 22:13:20 UTC.
TO_TWO = 3 * HOUR_S + 46 * 60 + 40


def zone(name: str) -> tzinfo | None:
    return {"UTC": UTC, "Asia/Tokyo": ZoneInfo("Asia/Tokyo")}.get(name)


@pytest.fixture
def cluster() -> Driver:
    cluster = Driver(crons=CronLookups(zone=zone))
    cluster.fleet("a", "b")
    return cluster


def nightly(**fields: Any) -> JobSpec:
    schedule = {"cron": "0 2 * * *", **fields.pop("schedule", {})}
    return spec(**{"name": "nightly", "schedule": schedule, **fields})


def schedule(cluster: Driver, **fields: Any) -> None:
    cluster.apply(events.CronSet(nightly(**fields), owner="ada"))


def row(cluster: Driver) -> Cron:
    return cluster.cluster.crons[NIGHTLY]


def oldest_first(cluster: Driver) -> list[Job]:
    return sorted(cluster.jobs.values(), key=lambda job: job.created_at)


def names(cluster: Driver) -> list[str]:
    return [job.name for job in oldest_first(cluster)]


def run_named(cluster: Driver, name: str) -> str:
    return next(job.id for job in cluster.jobs.values() if job.name == name)


def kinds(cluster: Driver) -> list[str]:
    about = (CronRecord, CronFired)
    return [kind_of(record) for record in cluster.records if isinstance(record, about)]


def finish(cluster: Driver, job: str, code: int = 0) -> None:
    cluster.run(job, "a")
    cluster.exit(job, 0, code)


def test_a_cron_fires_at_two_and_not_before(cluster: Driver) -> None:
    schedule(cluster)
    cluster.advance(TO_TWO - 1)
    assert names(cluster) == []
    cluster.advance(2)
    [job] = cluster.jobs.values()
    assert job.name == "nightly-202311150200"
    assert (job.cron, job.owner) == (NIGHTLY, "ada")
    assert job.spec.schedule is None
    assert datetime.fromtimestamp((job.due_at or 0) / SECOND, UTC).hour == 2
    assert kinds(cluster) == ["CronCreated", "CronFired"]


def test_a_cron_fires_in_its_own_time_zone(cluster: Driver) -> None:
    schedule(cluster, schedule={"cron": "0 8 * * *", "timezone": "Asia/Tokyo"})
    cluster.advance(HOUR_S)
    assert names(cluster) == ["nightly-202311150800"]


def test_an_overlapping_run_is_skipped_and_recorded(cluster: Driver) -> None:
    schedule(cluster)
    cluster.advance(TO_TWO + 24 * HOUR_S)
    assert names(cluster) == ["nightly-202311150200"]
    assert kinds(cluster) == ["CronCreated", "CronFired", "CronSkipped"]
    assert row(cluster).last is not None
    finish(cluster, run_named(cluster, "nightly-202311150200"))
    cluster.advance(24 * HOUR_S)
    assert names(cluster)[-1] == "nightly-202311170200"


LATTICE = b"""
apiVersion: lattice.dev/v1alpha1
kind: LatticeJob
metadata: {name: nightly}
spec:
  schedule: "0 2 * * *"
  tasks:
    worker:
      replicas: 1
      workload: {containers: {main: {image: "x@sha256:0", command: [train]}}}
"""


def test_a_lattice_job_with_a_schedule_is_a_cron_like_any_other(cluster: Driver) -> None:
    [job] = read(LATTICE).jobs
    cluster.apply(events.CronSet(job))
    cluster.advance(TO_TWO + 24 * HOUR_S)
    assert names(cluster) == ["nightly-202311150200"]
    assert kinds(cluster) == ["CronCreated", "CronFired", "CronSkipped"]


def test_an_overlap_may_be_allowed(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "allow"})
    cluster.advance(TO_TWO + 24 * HOUR_S)
    assert names(cluster) == ["nightly-202311150200", "nightly-202311160200"]


def test_the_next_run_starts_when_the_one_it_replaces_is_gone(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "replace"})
    cluster.advance(TO_TWO + 1)
    old = run_named(cluster, "nightly-202311150200")
    cluster.run(old, "a")
    cluster.advance(24 * HOUR_S)
    assert cluster.states(old) == [State.PREEMPTING]
    assert names(cluster) == ["nightly-202311150200"]
    cluster.restart()
    cluster.stop(old)
    cluster.advance(0)
    assert cluster.phase(old) is Phase.CANCELLED
    assert names(cluster) == ["nightly-202311150200", "nightly-202311160200"]
    assert kinds(cluster) == ["CronCreated", "CronFired", "CronReplacing", "CronFired"]


def test_a_pending_run_is_replaced_at_once(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "replace"})
    cluster.advance(TO_TWO + 24 * HOUR_S)
    assert names(cluster) == ["nightly-202311150200", "nightly-202311160200"]
    assert cluster.phase(run_named(cluster, "nightly-202311150200")) is Phase.CANCELLED


def test_a_replacement_is_denied_if_the_owner_lost_access_in_the_meantime(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "replace"})
    cluster.advance(TO_TWO + 1)
    old = run_named(cluster, "nightly-202311150200")
    cluster.run(old, "a")
    cluster.advance(24 * HOUR_S)
    cluster.lookups = CronLookups(
        zone=zone, verdict=lambda spec, owner: CronVerdict(f"{owner} has left")
    )
    cluster.stop(old)
    cluster.advance(0)
    assert names(cluster) == ["nightly-202311150200"]
    assert kinds(cluster)[-1] == "CronDenied"


def test_older_runs_are_forgotten(cluster: Driver) -> None:
    schedule(cluster, schedule={"keep": {"done": 2, "failed": 1}}, max_retries=1)
    forgotten: list[str] = []
    for day in range(5):
        cluster.advance(24 * HOUR_S)
        job = oldest_first(cluster)[-1].id
        cluster.run(job, "a")
        forgotten += cluster.exit(job, 0, int(day in (1, 2))).forgotten
    first, second, *_ = oldest_first(cluster)
    assert forgotten == [second.id, first.id]
    phases = [run.phase for run in row(cluster).runs]
    assert phases == [Phase.FAILED, Phase.DONE, Phase.DONE]


def test_a_run_never_takes_the_id_of_an_unfinished_job(
    cluster: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crons, "scrambled", lambda now, seq, draw: draw)
    schedule(cluster, schedule={"concurrency": "allow"})
    cluster.advance(3 * 24 * HOUR_S)
    assert [job.id for job in oldest_first(cluster)] == ["j-00000000", "j-00000001", "j-00000002"]


def test_after_an_outage_one_run_makes_up_for_all(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "allow"})
    cluster.now += (TO_TWO + 5 * 24 * HOUR_S) * SECOND
    cluster.restart()
    cluster.advance(1)
    assert names(cluster) == ["nightly-202311200200"]
    cluster.restart()
    cluster.advance(1)
    assert len(cluster.jobs) == 1


def test_a_timer_that_comes_again_finds_it_done(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "allow"})
    due = row(cluster).next_at
    assert due is not None
    cluster.advance(TO_TWO + 1)
    cluster.apply(events.CronDue(NIGHTLY, due))
    assert len(cluster.jobs) == 1


def test_a_denied_run_is_recorded_and_the_next_is_tried(cluster: Driver) -> None:
    verdicts = [CronVerdict(policies=("base",)), CronVerdict("ada has left", ("no-nights",))]
    cluster.lookups = CronLookups(zone=zone, verdict=lambda spec, owner: verdicts[-1])
    schedule(cluster)
    cluster.advance(TO_TWO + 1)
    assert names(cluster) == []
    [denied] = [record for record in cluster.records if isinstance(record, CronDenied)]
    assert (denied.why, denied.policies) == ("ada has left", ("no-nights",))
    verdicts.pop()
    cluster.advance(24 * HOUR_S)
    assert names(cluster) == ["nightly-202311160200"]
    [submitted] = [record for record in cluster.records if isinstance(record, JobSubmitted)]
    assert submitted.policies == ("base",)


def test_a_queue_that_went_away_denies_the_run(cluster: Driver) -> None:
    cluster.apply(events.QueueSet(Queue("research")))
    schedule(cluster, queue="research")
    cluster.apply(events.QueueRemoved("research"))
    cluster.advance(TO_TWO + 1)
    assert names(cluster) == []
    assert kinds(cluster) == ["CronCreated", "CronDenied"]


def test_a_paused_cron_skips_the_times_that_were_due(cluster: Driver) -> None:
    schedule(cluster)
    cluster.apply(events.CronPaused(NIGHTLY, paused=True))
    cluster.advance(TO_TWO + 24 * HOUR_S)
    cluster.apply(events.CronPaused(NIGHTLY, paused=False))
    cluster.advance(1)
    assert names(cluster) == []
    cluster.advance(24 * HOUR_S)
    assert names(cluster) == ["nightly-202311170200"]


def test_a_run_that_is_asked_for_starts_now(cluster: Driver) -> None:
    schedule(cluster)
    due = row(cluster).next_at
    cluster.apply(events.CronRequested(NIGHTLY))
    [name] = names(cluster)
    assert name == "nightly-20231114221320"
    assert row(cluster).next_at == due
    assert "unfinished" in cluster.refuse(events.CronRequested(NIGHTLY), Conflict)


def test_a_run_that_is_asked_for_and_denied_is_an_error(cluster: Driver) -> None:
    schedule(cluster, schedule={"concurrency": "allow"})
    cluster.lookups = CronLookups(
        zone=zone, verdict=lambda spec, owner: CronVerdict(f"{owner} has left")
    )
    assert "ada has left" in cluster.refuse(events.CronRequested(NIGHTLY), Conflict)


def test_submitting_the_same_name_again_changes_the_cron(cluster: Driver) -> None:
    schedule(cluster)
    schedule(cluster)
    assert kinds(cluster) == ["CronCreated"]
    schedule(cluster, schedule={"cron": "0 3 * * *"}, role={"command": "other"})
    assert kinds(cluster) == ["CronCreated", "CronChanged"]
    cluster.advance(TO_TWO + HOUR_S + 1)
    assert names(cluster) == ["nightly-202311150300"]
    [job] = cluster.jobs.values()
    assert job.spec.roles[0].command == "other"


def test_a_cron_that_is_removed_leaves_its_runs(cluster: Driver) -> None:
    schedule(cluster)
    cluster.advance(TO_TWO + 1)
    cluster.apply(events.CronRemoved(NIGHTLY))
    [job] = cluster.jobs
    finish(cluster, job)
    cluster.advance(24 * HOUR_S)
    assert cluster.phase(job) is Phase.DONE
    assert len(cluster.jobs) == 1
    cluster.refuse(events.CronRemoved(NIGHTLY), Unknown)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": None}, "name is missing; a job with a schedule needs one"),
        ({"queue": "nowhere"}, "queue is nowhere, which does not exist"),
        (
            {"schedule": {"timezone": "Mars/Olympus"}},
            "schedule.timezone is Mars/Olympus, which this server does not know",
        ),
    ],
)
def test_an_invalid_cron_is_refused(cluster: Driver, fields: dict[str, Any], words: str) -> None:
    assert words in cluster.refuse(events.CronSet(nightly(**fields)), Invalid)
