"""Complete cron events with facts from outside the core: time zones and permissions.

The core decides from the event, the time and its rows alone, so these facts travel on the event.
"""

from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.events import (
    CronDue,
    CronPaused,
    CronReplacementDue,
    CronRequested,
    CronSet,
    Event,
)
from phalanx.core.model import Cron
from phalanx.core.spec.job import JobSpec
from phalanx.engine.timezones import zone


class CronVerdict(NamedTuple):
    """Whether the owner of a cron may run its job now."""

    refusal: str | None = None  #: why not
    policies: tuple[str, ...] = ()  #: those that decided so


def _allow(spec: JobSpec, owner: str) -> CronVerdict:
    return CronVerdict()


class CronLookups(NamedTuple):
    #: The time zone of that name; None if this host has no such zone.
    zone: Callable[[str], tzinfo | None] = zone
    #: Whether this owner may run this job now.
    verdict: Callable[[JobSpec, str], CronVerdict] = _allow

    def complete(self, event: Event, crons: Mapping[str, Cron]) -> Event:
        """The same event, with the time zone and the verdict that it needs."""
        match event:
            case CronSet():
                return replace(event, zone=self._zone(event.spec))
            case CronPaused():
                cron = crons.get(event.cron)
                return event if cron is None else replace(event, zone=self._zone(cron.spec))
            case CronRequested() | CronDue() | CronReplacementDue():
                cron = crons.get(event.cron)
                if cron is None:
                    return event
                refusal, policies = self.verdict(cron.spec, cron.owner)
                zone_of_cron = self._zone(cron.spec)
                return replace(event, zone=zone_of_cron, refusal=refusal, policies=policies)
            case _:
                return event

    def _zone(self, spec: JobSpec) -> tzinfo | None:
        return None if spec.schedule is None else self.zone(spec.schedule.timezone)
