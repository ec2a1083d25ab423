"""Cron expressions have five fields and times that exist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Invalid
from phalanx.core.spec import cron_expression


def test_an_expression_names_sets_of_times() -> None:
    due = cron_expression.parse("*/15 8-10,22 1 JAN,mar sun")
    assert due.minutes == {0, 15, 30, 45}
    assert due.hours == {8, 9, 10, 22}
    assert due.days == {1}
    assert due.months == {1, 3}
    assert due.weekdays == {0}
    assert due.either_day


def test_a_star_is_every_time() -> None:
    due = cron_expression.parse("* * * * *")
    assert due.hours == set(range(24))
    assert due.weekdays == set(range(7))
    assert not due.either_day


@pytest.mark.parametrize(
    ("written", "weekdays"),
    [
        ("0", {0}),
        ("7", {0}),
        ("fri-7", {5, 6, 0}),
        ("mon-fri", {1, 2, 3, 4, 5}),
        ("1/3", {1, 4, 0}),
    ],
)
def test_sunday_is_both_0_and_7(written: str, weekdays: set[int]) -> None:
    assert cron_expression.parse(f"0 0 * * {written}").weekdays == weekdays


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("0 2 * *", "fields is 4; write five"),
        ("0 0 2 * * *", "fields is 6; write five"),
        ("@daily", "fields is 1; write five"),
        ("", "fields is 0; write five"),
        ("60 * * * *", "as its minute; write *, numbers from 0 to 59"),
        ("* 24 * * *", "as its hour"),
        ("* * 0 * *", "as its day of the month"),
        ("* * * 13 *", "numbers from 1 to 12 or words like feb"),
        ("* * * * 8", "as its day of the week"),
        ("* * * mon *", "as its month"),
        ("*/0 * * * *", "a step of at least 1"),
        ("22-2 * * * *", "range ends before it begins; write 22-59,0-2"),
        ("1,,2 * * * *", "as its minute"),
        ("1- * * * *", "as its minute"),
        ("*-5 * * * *", "as its minute"),
        ("\u0661 * * * *", "as its minute"),
        ("-1 * * * *", "as its minute"),
        ("0 0 30 2 *", "a day that does not exist in its months"),
        ("0 0 31 4,6 *", "a day that does not exist in its months"),
        ("1," * 1000, "at most 500"),
        (5, "not a string"),
        (None, "not a string"),
    ],
)
def test_an_invalid_expression_is_refused(written: object, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        cron_expression.parse(written)
    assert said in str(refused.value)


def test_a_leap_day_exists() -> None:
    assert cron_expression.parse("0 0 29 2 *").days == {29}


def test_a_day_that_does_not_exist_is_allowed_next_to_a_weekday() -> None:
    assert cron_expression.parse("0 0 31 2 mon").either_day


@given(st.text("0123456789*/-,abcjfmnou ", max_size=30) | st.from_regex(r"(\S{1,5} ){4}\S{1,5}"))
def test_any_text_is_an_expression_with_a_time_or_refused(written: str) -> None:
    try:
        due = cron_expression.parse(written)
    except Invalid:
        return
    assert all((due.minutes, due.hours, due.days, due.months, due.weekdays))
