"""What an engine takes from the machine it runs on. A simulation supplies all of it from a seed."""

from collections.abc import Callable
from typing import NamedTuple

from phalanx.core.time_units import Micros
from phalanx.engine.cron_lookups import CronLookups


class HostEnvironment(NamedTuple):
    name: str  #: the name of this server, for people
    url: str  #: where this server is reached
    clock: Callable[[], Micros]
    new_id: Callable[[], str]
    crons: CronLookups = CronLookups()
