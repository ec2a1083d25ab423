"""Cron events get their time zone and the verdict about their owner before the core sees them."""

from datetime import UTC

from tests.driver import Driver, spec

from phalanx.core.events import CronDue, CronSet
from phalanx.core.records import CronDenied
from phalanx.core.spec.job import JobSpec
from phalanx.engine.cron_lookups import CronLookups, CronVerdict
from phalanx.engine.turn import Turn

HOUR = 3_600_000_000


def refuse(spec: JobSpec, owner: str) -> CronVerdict:
    return CronVerdict(f"{owner} has no token")


def test_a_due_cron_of_a_refused_owner_does_not_run() -> None:
    cluster = Driver().cluster
    turn = Turn(cluster, 0, CronLookups(zone=lambda _: UTC, verdict=refuse))
    hourly = spec(name="hourly", schedule={"cron": "0 * * * *"})
    turn.apply(CronSet(hourly, owner="ada"))
    later = Turn(cluster, HOUR, CronLookups(zone=lambda _: UTC, verdict=refuse))
    later.apply(CronDue("default/hourly", HOUR))
    [denied] = [record for record in later.records() if isinstance(record, CronDenied)]
    assert denied.why == "ada has no token"
    assert not cluster.gangs
