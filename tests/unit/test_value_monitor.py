"""The rules for watched values: which values are abnormal, and which of them raise an alarm."""

import math
from collections.abc import Iterable

import pytest

from phalanx.agent.link.value_monitor import ValueMonitor
from phalanx.core.spec.watch import AbnormalKind, watch

NAN, SPIKE = AbnormalKind.NAN, AbnormalKind.SPIKE


def alarms(rules: dict[str, object], values: Iterable[float]) -> list[tuple[int, AbnormalKind]]:
    monitor = ValueMonitor("loss", watch({"loss": rules})["loss"])
    raised = (monitor.observe(step, value) for step, value in enumerate(values))
    return [(alarm.step, alarm.kind) for alarm in raised if alarm is not None]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_abnormal_from_the_first_on(value: float) -> None:
    assert alarms({"nan": "event"}, [value, 1.0]) == [(0, NAN)]
    assert alarms({"spike": "5x"}, [value] * 20) == []


def test_a_spike_is_more_than_the_factor_times_the_median() -> None:
    assert alarms({"spike": "5x"}, [2.0] * 10 + [10.0]) == []
    assert alarms({"spike": "5x"}, [2.0] * 10 + [10.1]) == [(10, SPIKE)]


def test_a_spike_needs_ten_values_before_it() -> None:
    assert alarms({"spike": "5x"}, [1.0] * 9 + [100.0]) == []


def test_a_falling_loss_and_single_outliers_do_not_raise_the_median() -> None:
    falling = [10 / (1 + step) for step in range(100)]
    assert alarms({"spike": "5x"}, falling) == []
    noisy = [1.0, 1.0, 4.0] * 10
    assert alarms({"spike": "5x"}, [*noisy, 5.5]) == [(30, SPIKE)]


def test_magnitudes_are_compared_so_negative_values_can_spike() -> None:
    assert alarms({"spike": "5x"}, [-1.0] * 10 + [-6.0]) == [(10, SPIKE)]
    assert alarms({"spike": "5x"}, [-1.0] * 10 + [0.0, 1.0]) == []


def test_after_zeros_nothing_is_a_spike() -> None:
    assert alarms({"spike": "5x"}, [0.0] * 20 + [1e-9, 1.0]) == []


def test_a_lasting_change_of_level_becomes_the_new_normal() -> None:
    values = [1.0] * 20 + [10.0] * 40 + [100.0]
    assert alarms({"spike": {"factor": "5x", "window": 20}}, values) == [(20, SPIKE), (60, SPIKE)]


def test_abnormal_values_in_a_row_are_one_alarm() -> None:
    values = [1.0] * 20 + [9.0, 9.0, 9.0] + [1.0] * 9 + [9.0] + [1.0] * 10 + [9.0]
    assert alarms({"spike": "5x"}, values) == [(20, SPIKE), (43, SPIKE)]
    assert alarms({"nan": "event", "spike": "5x"}, [1.0] * 10 + [9.0, math.nan]) == [
        (10, SPIKE),
        (11, NAN),
    ]


def test_a_value_that_never_settles_raises_few_alarms() -> None:
    assert len(alarms({"nan": "event"}, ([1.0] * 10 + [math.nan]) * 500)) == 20
