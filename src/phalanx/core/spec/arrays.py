"""Arrays: one submission of many equal gangs, its elements.

An element has an index, from a list such as `0-19` or `1,3,7-9:2`, or its place in a grid of
parameters, whose last parameter changes first. `placeholders` puts both into commands.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from phalanx.core.errors import Unknown
from phalanx.core.spec.fields import (
    Field,
    FieldPath,
    as_key,
    check_count,
    integer,
    items,
    mapping,
    read_table,
    refusal,
    shown,
    text,
    write_fields,
)

ELEMENT_LIMIT = 10_000
#: The highest index of an element.
INDEX_LIMIT = 999_999_999
PARAM_LIMIT = 20
#: Numbers and ranges in one list of indices.
_PIECE_LIMIT = 1000
#: Characters of all values of all parameters.
_VALUES_LIMIT_CHARS = 20_000

_PIECE = re.compile(r"(?P<low>[0-9]{1,9})(?:-(?P<high>[0-9]{1,9})(?::(?P<step>[0-9]{1,9}))?)?")
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
#: The placeholder of every array.
INDEX = "index"

_WHAT = (
    "indices like 0-19 or 1,3,7-9:2, or a mapping like {indices: 0-19, parallel: 4} or"
    " {params: {lr: [1e-3, 1e-4], seed: [0, 1]}}"
)


class Indices:
    """A list of different indices, kept as ranges."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: tuple[range, ...]) -> None:
        self._ranges = ranges

    def __len__(self) -> int:
        return sum(map(len, self._ranges))

    def __iter__(self) -> Iterator[int]:
        return (index for each in self._ranges for index in each)

    def __getitem__(self, position: int) -> int:
        for each in self._ranges:
            if position < len(each):
                return each[position]
            position -= len(each)
        raise IndexError(position)

    def position(self, index: int) -> int | None:
        """The place of an index in the list; None if it is not in it."""
        before = 0
        for each in self._ranges:
            if index in each:
                return before + each.index(index)
            before += len(each)
        return None

    def __str__(self) -> str:
        return ",".join(map(_written_range, self._ranges))


def _written_range(indices: range) -> str:
    if len(indices) == 1:
        return str(indices[0])
    step = f":{indices.step}" if indices.step > 1 else ""
    return f"{indices[0]}-{indices[-1]}{step}"


@lru_cache(maxsize=256)
def parsed_indices(written: str) -> Indices:
    """The indices of a list such as `1,3,7-9:2`. Raises Invalid."""
    pieces = written.split(",")
    check_count(pieces, _PIECE_LIMIT, "use ranges like 0-19 or 0-100:10")
    ranges: list[range] = []
    for piece in pieces:
        match = _PIECE.fullmatch(piece.strip())
        if match is None:
            raise refusal(
                f"is {shown(written)}; write indices like 0-19 or 1,3,7-9:2, from 0 to"
                f" {INDEX_LIMIT}"
            )
        low = int(match["low"])
        high, step = int(match["high"] or low), int(match["step"] or 1)
        if high < low or step == 0:
            cure = "the step is at least 1" if step == 0 else "write the lower index first"
            raise refusal(f"has the range {piece.strip()}; {cure}")
        ranges.append(range(low, high + 1, step))
    _check_elements(sum(map(len, ranges)))
    seen: set[int] = set()
    for each in ranges:
        for index in each:
            if index in seen:
                raise refusal(f"has the index {index} twice; write each index once")
            seen.add(index)
    return Indices(tuple(ranges))


def _check_elements(count: int) -> None:
    if count > ELEMENT_LIMIT:
        raise refusal(
            f"has {count} elements; an array has at most {ELEMENT_LIMIT}: split it into several"
            " arrays"
        )


class ArraySpec(msgspec.Struct, frozen=True):
    """The elements of an array, and how many of them may run at the same time."""

    indices: str  #: written as ranges
    params: dict[str, tuple[str, ...]]  #: values by name, as they were written
    parallel: int | None  #: the most elements that are pending or running; None: no limit

    @property
    def elements(self) -> Indices:
        return parsed_indices(self.indices)

    def values(self, index: int) -> dict[str, str]:
        """What the placeholders of an element stand for."""
        values: dict[str, str] = {}
        place = index
        for name, choices in reversed(self.params.items()):
            place, choice = divmod(place, len(choices))
            values[name] = choices[choice]
        return {INDEX: str(index), **dict(reversed(values.items()))}


def array(value: object) -> ArraySpec:
    """The array of a job: indices and `%` with the parallel limit, or a mapping."""
    if isinstance(value, str):
        indices, percent, parallel = value.partition("%")
        is_number = re.fullmatch(r"[0-9]{1,9}", parallel) is not None
        if percent and not (is_number and 1 <= int(parallel) <= ELEMENT_LIMIT):
            raise refusal(
                f"is {shown(value)}; after % comes how many elements run at the same time, from 1"
                f" to {ELEMENT_LIMIT}, like 0-19%4"
            )
        value = {"indices": indices, "parallel": int(parallel) if percent else None}
    fields = read_table(mapping(value, _WHAT), _WHAT, _ARRAY_FIELDS)
    indices, params = fields["indices"], fields["params"]
    if indices is None and not params:
        raise refusal(f"has no elements; write {_WHAT}")
    count = prod(map(len, params.values())) if params else 0
    if indices is None:
        _check_elements(count)
        indices = f"0-{count - 1}" if count > 1 else "0"
    elif params and max(parsed_indices(indices)) >= count:
        raise refusal(
            f"has the index {max(parsed_indices(indices))}, and the grid of its parameters has"
            f" {count} points; write indices from 0 to {count - 1}, or leave them out"
        )
    return ArraySpec(indices, params, fields["parallel"])


def _indices(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, list | tuple):
        check_count(value, ELEMENT_LIMIT, "split the array")
        value = written_indices([integer(0, INDEX_LIMIT)(each) for each in value])
    return str(parsed_indices(text(value)))


def written_indices(indices: list[int]) -> str:
    """A list of numbers, with ranges for those that follow each other."""
    pieces: list[list[int]] = []
    for index in indices:
        if pieces and pieces[-1][-1] + 1 == index:
            pieces[-1] = [pieces[-1][0], index]
        else:
            pieces.append([index])
    return ",".join("-".join(map(str, piece)) for piece in pieces)


def _params(value: object) -> dict[str, tuple[str, ...]]:
    given = mapping(value, "a mapping of names to lists, like {lr: [1e-3, 1e-4], seed: [0, 1]}")
    check_count(given, PARAM_LIMIT, "remove some")
    path = FieldPath()
    params: dict[str, tuple[str, ...]] = {}
    for key, choices in given.items():
        with path.at(as_key(key)):
            _check_param(key, params)
            params[as_key(key)] = _choices(choices)
    path.raise_problems()
    if sum(len(each) for choices in params.values() for each in choices) > _VALUES_LIMIT_CHARS:
        raise refusal(
            f"has values of more than {_VALUES_LIMIT_CHARS} characters in all; put long values in a"
            " file, and let the command choose by its index"
        )
    return params


def _check_param(name: object, others: Mapping[str, Any]) -> None:
    if not isinstance(name, str) or not _PARAM.fullmatch(name):
        raise refusal("is not the name of a parameter; use letters, digits and '_', like lr")
    if name.casefold() == INDEX:
        raise refusal("is the placeholder of the element's index; choose another name")
    if name.casefold() in map(str.casefold, others):
        raise refusal("differs from another parameter only in its case; choose another name")


def _choices(value: object) -> tuple[str, ...]:
    choices = items(value, "a list of values, like [1e-3, 1e-4]")
    if not choices:
        raise refusal("has no values; write at least one")
    check_count(choices, ELEMENT_LIMIT, "remove some")
    path = FieldPath()
    written: list[str] = []
    for number, choice in enumerate(choices):
        with path.at(number):
            written.append(_as_written(choice))
    path.raise_problems()
    return tuple(written)


def _as_written(value: object) -> str:
    """A value of a parameter as text. Numbers of a YAML file know how they were written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return text(value)
    raise refusal(f"is {shown(value)}; write a number or a string")


def written_array(spec: ArraySpec) -> dict[str, object]:
    """An array as a user writes it."""
    written = write_fields(spec, _ARRAY_FIELDS)
    count = prod(map(len, spec.params.values())) if spec.params else None
    if count is not None and len(spec.elements) == count:
        del written["indices"]
    return written


_ARRAY_FIELDS = {
    "indices": Field(_indices),
    "params": Field(
        _params, {}, lambda params: {name: list(choices) for name, choices in params.items()}
    ),
    "parallel": Field(integer(1, ELEMENT_LIMIT)),
}


def selected(spec: ArraySpec, written: str) -> list[int]:
    """The indices of an array that a list such as `3-5` names. Raises Invalid or Unknown."""
    elements = spec.elements
    indices = list(parsed_indices(written))
    for index in indices:
        if elements.position(index) is None:
            raise Unknown(f"the array has no element {index}; its indices are {elements}")
    return indices
