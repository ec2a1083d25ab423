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


def _allow(spec: JobSpec, owner: str) -> str | None:
    return None


class CronLookups(NamedTuple):
    #: The time zone of that name; None if this host has no such zone.
    zone: Callable[[str], tzinfo | None] = zone
    #: Why this owner may not run this job now; None if the owner may.
    refusal: Callable[[JobSpec, str], str | None] = _allow

    def complete(self, event: Event, crons: Mapping[str, Cron]) -> Event:
        """The same event, with the time zone and the refusal that it needs."""
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
                refusal = self.refusal(cron.spec, cron.owner)
                return replace(event, zone=self._zone(cron.spec), refusal=refusal)
            case _:
                return event

    def _zone(self, spec: JobSpec) -> tzinfo | None:
        return None if spec.schedule is None else self.zone(spec.schedule.timezone)
