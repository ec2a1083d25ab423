"""The times at which a cron is due, by the clock of its time zone.

A local time that a clock change skips is due at the first moment after the gap. A local time that
comes twice is due the first time only. Time zones are arguments.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from phalanx.core.spec.cron_expression import CronExpression
from phalanx.core.time_units import HOUR, MINUTE, SECOND, Micros

_DAY: Micros = 24 * HOUR
_MINUTE = timedelta(minutes=1)
_ONE_DAY = timedelta(days=1)
#: The 29th of February can be eight years away; no valid expression is rarer.
_YEARS = 9
#: How far to look back for the last time, the shortest span first.
_BACK = (_DAY, 32 * _DAY, 400 * _DAY, _YEARS * 366 * _DAY)


def next_due(cron: CronExpression, zone: tzinfo, after: Micros) -> Micros | None:
    """The first due time after `after`; None if there is none within nine years."""
    begin = datetime.fromtimestamp(after // SECOND, UTC).astimezone(zone).replace(tzinfo=None)
    for local in _local_times(cron, begin.replace(second=0)):
        at = _instant(local, zone)
        if at > after:
            return at
    return None


def last_due(cron: CronExpression, zone: tzinfo, since: Micros, now: Micros) -> Micros:
    """The latest due time up to `now`. `since` is a due time too, and the earliest answer."""
    for back in _BACK:
        due = next_due(cron, zone, max(since, now - back))
        last = None
        while due is not None and due <= now:
            last, due = due, next_due(cron, zone, due)
        if last is not None:
            return last
        if now - back <= since:
            break
    return since


def stamp(at: Micros, zone: tzinfo) -> str:
    """`202611150200`, with seconds only where they are not 0."""
    local = datetime.fromtimestamp(at // SECOND, UTC).astimezone(zone)
    return local.strftime("%Y%m%d%H%M%S" if at % MINUTE else "%Y%m%d%H%M")


def _local_times(cron: CronExpression, begin: datetime) -> Iterator[datetime]:
    """The local minutes of the expression in order, from `begin` on."""
    hours, minutes = sorted(cron.hours), sorted(cron.minutes)
    day, last = begin.date(), begin.year + _YEARS
    while day.year <= last:
        if _is_due(cron, day):
            for hour in hours:
                for minute in minutes:
                    local = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001
                    if local >= begin:
                        yield local
        day += _ONE_DAY


def _is_due(cron: CronExpression, day: date) -> bool:
    if day.month not in cron.months:
        return False
    by_day, by_weekday = day.day in cron.days, day.isoweekday() % 7 in cron.weekdays
    return by_day or by_weekday if cron.either_day else by_day and by_weekday


def _instant(local: datetime, zone: tzinfo) -> Micros:
    """The moment of a local time, or of the first local time after it that exists."""
    while True:
        moment = local.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == local:
            return int(moment.timestamp()) * SECOND
        local += _MINUTE
