"""Times and durations in microseconds."""

#: A duration, or a time since 1970 (UTC), in microseconds.
Micros = int

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
