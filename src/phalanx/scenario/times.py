"""The fixed times of a scenario."""

from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import SECOND, Micros

#: The time of the plan: 2000-01-01 00:00 UTC. Any time would do; this one is easy to recognise.
NOW: Micros = 946_684_800 * SECOND
#: When a gang was submitted or started, unless the file says otherwise.
LONG_AGO: Micros = NOW - 30 * 24 * 3600 * SECOND
#: How long a task may take to stop after its time limit.
STOP_TIMEOUT: Micros = CoreSettings().stop_timeout(15 * SECOND)
