"""`watch`: the values of a job that are watched, and what an abnormal one leads to.

A value is abnormal if it is not a finite number (`nan`), or if its magnitude is a multiple of what
it was lately (`spike`). `agent/link/value_monitor.py` detects both.
"""

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from phalanx.core.spec.fields import (
    Field,
    FieldPath,
    as_key,
    check_count,
    integer,
    mapping,
    one_of,
    read_table,
    refusal,
    shown,
    text,
    write_fields,
)

#: Values that one job can watch.
WATCH_LIMIT = 8
#: Values that a spike is compared with, at least.
LEAST_HISTORY = 10
_LARGEST_WINDOW = 1000
_LARGEST_FACTOR = 1e6
_DECIMALS = 6

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,39}")
_FACTOR = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?x?")


class WatchAction(StrEnum):
    """What an abnormal value leads to, besides the event and the suspicion against its worker."""

    EVENT = "event"  #: nothing more
    RESTART = "restart"  #: the gang restarts from its last checkpoint before the value
    FAIL = "fail"  #: the job fails, without further attempts


#: By rank: of several actions, the last one is taken.
ACTIONS = tuple(WatchAction)


class AbnormalKind(StrEnum):
    """In which way a value is abnormal."""

    NAN = "nan"  #: it is not a finite number
    SPIKE = "spike"  #: its magnitude is a multiple of the median before it


class SpikeRule(msgspec.Struct, frozen=True):
    factor: float  #: of the median magnitude; a larger value is a spike
    window: int  #: the number of values before it that the median is of
    action: WatchAction


class ValueRules(msgspec.Struct, frozen=True):
    """The rules for one value."""

    nan: WatchAction | None
    spike: SpikeRule | None

    def action(self, kind: AbnormalKind) -> WatchAction | None:
        """None if the rules do not watch for this kind."""
        if kind is AbnormalKind.NAN:
            return self.nan
        return None if self.spike is None else self.spike.action


def is_value_name(name: str) -> bool:
    """Whether a reported value can have this name."""
    return _NAME.fullmatch(name) is not None


def _factor(value: object) -> float:
    number: float = 0
    if isinstance(value, str) and _FACTOR.fullmatch(value):
        number = float(value.removesuffix("x"))
    elif isinstance(value, int | float) and 1 < value <= _LARGEST_FACTOR:
        number = round(float(value), _DECIMALS)
    if not 1 < number <= _LARGEST_FACTOR:
        raise refusal(f"is {shown(value)}; write a factor above 1 and up to 1000000, like 5x")
    return number


def _written_factor(factor: float) -> str:
    return f"{factor:.{_DECIMALS}f}".rstrip("0").rstrip(".") + "x"


_SPIKE_FIELDS = {
    "factor": Field(_factor, "5x", _written_factor),
    "window": Field(integer(LEAST_HISTORY, _LARGEST_WINDOW), 50),
    "action": Field(one_of(WatchAction), "event", str),
}


def _spike(value: object) -> SpikeRule:
    if not isinstance(value, Mapping):
        value = {"factor": value}
    return SpikeRule(**read_table(value, "a factor, like 5x", _SPIKE_FIELDS))


def _written_spike(rule: SpikeRule) -> object:
    written = write_fields(rule, _SPIKE_FIELDS)
    return _written_factor(rule.factor) if written.keys() <= {"factor"} else written


_RULE_FIELDS = {
    "nan": Field(one_of(WatchAction), None, str),
    "spike": Field(_spike, None, _written_spike),
}


def _rules(value: object) -> ValueRules:
    rules = ValueRules(**read_table(value, "a mapping, like {nan: fail, spike: 5x}", _RULE_FIELDS))
    if rules.nan is None and rules.spike is None:
        raise refusal("has no rule; write nan, spike or both, like {nan: fail, spike: 5x}")
    return rules


def _name(key: object) -> str:
    name = text(key)
    if not is_value_name(name):
        raise refusal(
            "is not the name of a value; use at most 40 letters, digits and _ . / -, beginning with"
            " a letter"
        )
    return name


def watch(value: object) -> dict[str, ValueRules]:
    """Read the field."""
    watched = mapping(value, "a mapping of values to rules, like {loss: {nan: fail, spike: 5x}}")
    check_count(watched, WATCH_LIMIT, "watch fewer values")
    path = FieldPath()
    result: dict[str, ValueRules] = {}
    for key, rules in watched.items():
        with path.at(as_key(key)):
            result[_name(key)] = _rules(rules)
    path.raise_problems()
    return result


def written_watch(watched: dict[str, ValueRules]) -> dict[str, object]:
    """The field as a user writes it."""
    return {name: write_fields(rules, _RULE_FIELDS) for name, rules in watched.items()}
