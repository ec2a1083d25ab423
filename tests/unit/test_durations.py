"""Durations are exact, limited, and printed in their shortest form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Invalid
from phalanx.core.spec.durations import LONGEST, duration, printed, short_duration
from phalanx.core.time_units import HOUR, MINUTE, SECOND


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        ("90s", 90 * SECOND),
        ("15m", 15 * MINUTE),
        ("6h", 6 * HOUR),
        ("1d", 24 * HOUR),
        ("500ms", SECOND // 2),
        ("7us", 7),
        ("1h30m", 90 * MINUTE),
        ("1d2h3m4s5ms6us", 26 * HOUR + 3 * MINUTE + 4 * SECOND + 5006),
        ("1.5h", 90 * MINUTE),
        ("0.1s", SECOND // 10),
        ("0", 0),
        (0, 0),
        (90, 90 * SECOND),
        ("90", 90 * SECOND),
        (0.1, SECOND // 10),
        (1e-06, 1),
        ("1e3", 1000 * SECOND),
        (LONGEST // SECOND, LONGEST),
    ],
)
def test_a_duration_is_kept_exactly(written: object, micros: int) -> None:
    assert duration(written) == micros


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (-1, "cannot be negative"),
        (-0.5, "cannot be negative"),
        ("-15m", "cannot be negative"),
        (math.nan, "not a duration"),
        (math.inf, "not a duration"),
        (-math.inf, "not a duration"),
        (10**30, "at most 36525d"),
        pytest.param(10**5000, "at most 36525d", id="5001 digits"),
        ("36526d", "at most 36525d"),
        ("1e999", "at most 36525d"),
        ("1e999999999", "not a duration"),
        ("1ns", "not a duration"),
        ("0.1us", "not a whole number of microseconds"),
        (1e-7, "not a whole number of microseconds"),
        ("", "not a duration"),
        ("s", "not a duration"),
        ("5 m", "not a duration"),
        ("5min", "not a duration"),
        ("30m1h", "not a duration"),
        ("1h1h", "not a duration"),
        pytest.param("9" * 100_000, "not a duration", id="100000 digits"),
        (True, "not a duration"),
        (None, "is null, not a duration"),
        ({"s": 1}, "is a mapping, not a duration"),
    ],
)
def test_an_invalid_duration_is_refused(written: object, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        duration(written)
    [problem] = refused.value.problems
    assert said in problem.message
    assert len(problem.message) < 300


@pytest.mark.parametrize(
    ("micros", "shortest"),
    [
        (0, "0s"),
        (15 * SECOND, "15s"),
        (60 * SECOND, "1m"),
        (90 * SECOND, "90s"),
        (90 * MINUTE, "90m"),
        (24 * HOUR, "1d"),
        (24 * HOUR + SECOND, "1d1s"),
        (SECOND // 2, "500ms"),
        (1, "1us"),
    ],
)
def test_a_duration_prints_in_its_shortest_form(micros: int, shortest: str) -> None:
    assert printed(micros) == shortest


@given(st.integers(0, LONGEST) | st.integers(0, LONGEST // HOUR).map(lambda n: n * HOUR))
def test_what_is_printed_reads_back_the_same(micros: int) -> None:
    assert duration(printed(micros)) == micros


@given(st.text() | st.floats() | st.integers() | st.from_regex(r"(\d{1,3}(d|h|m|s|ms|us)){1,3}"))
def test_any_value_is_a_duration_in_bounds_or_refused(written: object) -> None:
    try:
        micros = duration(written)
    except Invalid:
        return
    assert 0 <= micros <= LONGEST


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.04, "0.0s"),
        (0.44, "0.4s"),
        (9.9, "9.9s"),
        (59.9, "59s"),
        (60, "1m"),
        (61, "1m 1s"),
        (600, "10m"),
        (661, "11m"),
        (3600, "1h"),
        (3 * 3600 + 125, "3h 2m"),
        (86_400 * 2 + 3_600, "2d 1h"),
        (86_400 * 12 + 3_600, "12d"),
    ],
)
def test_a_short_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text
