"""The times at which a cron is due, also at clock changes."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.spec import cron_expression
from phalanx.core.spec.cron_times import last_due, next_due, stamp
from phalanx.core.time_units import SECOND, Micros

ZURICH = ZoneInfo("Europe/Zurich")
APIA = ZoneInfo("Pacific/Apia")


def at(written: str, zone: tzinfo = UTC) -> Micros:
    return int(datetime.fromisoformat(written).replace(tzinfo=zone).timestamp()) * SECOND


def shown(micros: Micros | None, zone: tzinfo = UTC) -> str:
    assert micros is not None
    return datetime.fromtimestamp(micros / SECOND, zone).strftime("%Y-%m-%d %H:%M %Z")


def dues(expression: str, after: str, count: int, zone: tzinfo = UTC) -> list[str]:
    times, now = [], at(after, zone)
    for _ in range(count):
        due = next_due(cron_expression.parse(expression), zone, now)
        assert due is not None
        times.append(shown(due, zone))
        now = due
    return times


@pytest.mark.parametrize(
    ("expression", "after", "due"),
    [
        ("0 2 * * *", "2026-11-15T01:59:59", "2026-11-15 02:00 UTC"),
        ("0 2 * * *", "2026-11-15T02:00:00", "2026-11-16 02:00 UTC"),
        ("*/15 * * * *", "2026-12-31T23:50:00", "2027-01-01 00:00 UTC"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29 00:00 UTC"),
        ("30 9 * * mon-fri", "2026-11-13T10:00:00", "2026-11-16 09:30 UTC"),
        ("0 0 1 * fri", "2026-11-15T00:00:00", "2026-11-20 00:00 UTC"),
        ("0 0 31 * *", "2026-11-15T00:00:00", "2026-12-31 00:00 UTC"),
    ],
)
def test_the_next_time_is_the_first_that_the_expression_names(
    expression: str, after: str, due: str
) -> None:
    assert dues(expression, after, 1) == [due]


def test_a_time_that_a_clock_change_skips_is_due_once_after_the_gap() -> None:
    assert dues("30 2 * * *", "2026-03-28T12:00:00", 2, ZURICH) == [
        "2026-03-29 03:00 CEST",
        "2026-03-30 02:30 CEST",
    ]
    assert dues("*/20 2,3 * * *", "2026-03-29T01:00:00", 3, ZURICH) == [
        "2026-03-29 03:00 CEST",
        "2026-03-29 03:20 CEST",
        "2026-03-29 03:40 CEST",
    ]


def test_a_time_that_comes_twice_is_due_the_first_time() -> None:
    assert dues("30 2 * * *", "2026-10-24T12:00:00", 2, ZURICH) == [
        "2026-10-25 02:30 CEST",
        "2026-10-26 02:30 CET",
    ]


def test_between_the_two_it_is_not_due_again() -> None:
    first = at("2026-10-25T02:30:00", ZURICH)
    due = next_due(cron_expression.parse("30 2 * * *"), ZURICH, first + 40 * 60 * SECOND)
    assert shown(due, ZURICH) == "2026-10-26 02:30 CET"


def test_a_day_that_a_country_skipped_is_due_at_its_end() -> None:
    assert dues("0 12 30 12 *", "2011-12-29T13:00:00", 1, APIA) == ["2011-12-31 00:00 +14"]


def test_of_many_missed_times_the_last_one_counts() -> None:
    begin, now = at("2026-01-01T00:00:00"), at("2026-11-15T10:07:30")
    for expression, due in {
        "* * * * *": "2026-11-15 10:07 UTC",
        "0 2 * * *": "2026-11-15 02:00 UTC",
        "0 0 1 * *": "2026-11-01 00:00 UTC",
        "0 0 1 1 *": "2026-01-01 00:00 UTC",
    }.items():
        parsed = cron_expression.parse(expression)
        since = next_due(parsed, UTC, begin - 1)
        assert since is not None
        assert shown(last_due(parsed, UTC, since, now)) == due


def test_a_run_is_named_after_the_minute_in_its_time_zone() -> None:
    assert stamp(at("2026-11-15T02:00:00", ZURICH), ZURICH) == "202611150200"
    assert stamp(at("2026-11-15T02:00:07"), UTC) == "20261115020007"


moments = st.integers(at("2020-01-01T00:00:00"), at("2030-01-01T00:00:00"))


@settings(max_examples=50)
@given(
    moments,
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 1 * *", "59 23 * * sun"]),
    st.sampled_from([UTC, ZURICH, APIA, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata")]),
)
def test_times_increase_and_none_is_left_out(now: Micros, expression: str, zone: tzinfo) -> None:
    parsed = cron_expression.parse(expression)
    due = next_due(parsed, zone, now)
    assert due is not None
    assert due > now
    between = now + (due - now) // 2
    assert next_due(parsed, zone, between) == due
    local = datetime.fromtimestamp(due // SECOND, zone)
    is_named = local.minute in parsed.minutes and local.hour in parsed.hours
    skipped = (local - timedelta(seconds=1)).replace(tzinfo=None)
    jumped = datetime.fromtimestamp(due // SECOND - 1, zone).replace(tzinfo=None) != skipped
    assert is_named or jumped
