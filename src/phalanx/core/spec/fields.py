"""Reading a value out of what a user wrote.

A reader takes any object and returns it in its normal form or raises `Invalid`, with paths that
begin at the value it was given. A `FieldPath` gathers the problems of many readers under their
paths.
Nothing here follows a nested value further than a reader asks: it may contain itself.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from phalanx.core.errors import Invalid, Problem

#: A document with more problems than this is told of the first ones only.
PROBLEM_LIMIT = 100

_SHOWN_CHARS = 60
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)
Reader = Callable[[object], T]


def refusal(message: str) -> Invalid:
    """The one problem of a value; the message goes on from its path."""
    return Invalid([Problem("", message)])


def shown(value: object) -> str:
    """The value as a message may repeat it: scalars clipped, everything else by its kind."""
    if isinstance(value, str):
        clipped = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
        return json.dumps(clipped, ensure_ascii=not clipped.isprintable())
    if value is None or isinstance(value, bool | float):
        return json.dumps(value)
    if isinstance(value, int):
        # Python refuses to print integers of thousands of digits, and nobody would read them.
        return str(value) if value.bit_length() <= 128 else "a number of more than 38 digits"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def joined(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key) or len(key) > _SHOWN_CHARS:
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


class FieldPath:
    """A path in a document, and the problems found in the whole of it.

    Entered as a context it catches the `Invalid` of a reader and keeps its problems.
    """

    def __init__(self, path: str = "", problems: list[Problem] | None = None) -> None:
        self.path = path
        self._problems: list[Problem] = [] if problems is None else problems

    def at(self, key: str | int) -> "FieldPath":
        return FieldPath(joined(self.path, key), self._problems)

    @property
    def is_full(self) -> bool:
        return len(self._problems) >= PROBLEM_LIMIT

    def wrong(self, message: str) -> None:
        if not self.is_full:
            self._problems.append(Problem(self.path, message))

    def close(self) -> None:
        """Refuse the document if anything in it was wrong."""
        if self._problems:
            raise Invalid(self._problems)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Invalid):
            return False
        for problem in error.problems:
            dot = "." if self.path and problem.path and not problem.path.startswith("[") else ""
            FieldPath(self.path + dot + problem.path, self._problems).wrong(problem.message)
        return True


#: The default of a field that has none.
REQUIRED: Any = object()


def as_is(value: Any) -> object:
    return value


@dataclass(frozen=True, eq=False)
class Field:
    read: Reader[Any]
    default: object = None  #: as a user would write it; None leaves the normal form null
    write: Callable[[Any], object] = as_is  #: the normal form back to what a user would write

    @cached_property
    def absent(self) -> Any:
        """The normal form of the default; read once, for nobody changes what was read."""
        return None if self.default is None else self.read(self.default)


def mapping(value: object, what: str) -> Mapping[Any, object]:
    if not isinstance(value, Mapping):
        raise refusal(f"is {shown(value)}; write {what}")
    return value


def items(value: object, what: str) -> list[object]:
    if not isinstance(value, list | tuple):
        raise refusal(f"is {shown(value)}; write {what}")
    return list(value)


def read_fields(
    document: Mapping[Any, object],
    table: Mapping[str, Field],
    place: FieldPath,
    astray: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The fields that could be read, with defaults for those that are absent or null.

    `astray` says where fields belong that are known, but not here.
    """
    values: dict[str, Any] = {}
    for key in document:
        if key not in table:
            place.at(as_key(key)).wrong(astray.get(key) or _unknown(key, table, place))
    for name, field in table.items():
        given = document.get(name)
        if given is not None:
            with place.at(name):
                values[name] = field.read(given)
        elif field.default is REQUIRED:
            place.at(name).wrong("is missing; it has no default")
        else:
            values[name] = field.absent
    return values


def write_fields(struct: object, table: Mapping[str, Field]) -> dict[str, object]:
    """The fields of a struct as a user would write them; those with their default are left out."""
    written = {
        name: field.write(value)
        for name, field in table.items()
        if (value := getattr(struct, name)) is not None
    }
    return {name: value for name, value in written.items() if value != table[name].default}


def read_table(value: object, what: str, table: Mapping[str, Field]) -> dict[str, Any]:
    """All fields of a mapping, or `Invalid`."""
    place = FieldPath()
    values = read_fields(mapping(value, what), table, place)
    place.close()
    return values


def as_key(key: object) -> str:
    return key if isinstance(key, str) else shown(key)


def _unknown(key: object, known: Iterable[str], place: FieldPath) -> str:
    """What to say of a field that does not exist."""
    if not isinstance(key, str):
        return f"is {shown(key)}, which is not a field; names of fields are strings"
    # Comparing is slow, and a document may have very many unknown fields.
    near = [] if place.is_full or len(key) > 64 else difflib.get_close_matches(key, known, n=1)
    return f"is not a field; {f'did you mean {near[0]}?' if near else 'remove it'}"


# Readers of scalars.


def text(value: object) -> str:
    """Any string that a process can be given and a store can keep."""
    if not isinstance(value, str):
        cure = "write it in quotes" if isinstance(value, int | float) else "write a string"
        raise refusal(f"is {shown(value)}, not a string; {cure}")
    if "\0" in value:
        raise refusal("has a NUL character; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal("has half of a surrogate pair, which is no character; remove it") from None
    return value


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise refusal(f"is {shown(value)}; write true or false")
    return value


def integer(low: int, high: int) -> Reader[int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refusal(f"is {shown(value)}; write a whole number from {low} to {high}")
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise refusal(f"is {shown(value)}; it must be {bound}")
        return value

    return read


def one_of(words: type[Word]) -> Reader[Word]:
    def read(value: object) -> Word:
        for word in words:
            if value == word.value and isinstance(value, str):
                return word
        raise refusal(f"is {shown(value)}; write {' or '.join(words)}")

    return read


def texts(what: str, read_key: Reader[str], read_item: Reader[str]) -> Reader[dict[str, str]]:
    """A mapping of strings to strings."""

    def read(value: object) -> dict[str, str]:
        place = FieldPath()
        result: dict[str, str] = {}
        for key, item in mapping(value, what).items():
            with place.at(as_key(key)):
                result[read_key(key)] = read_item(item)
        place.close()
        return result

    return read


def distinct(what: str, read_item: Reader[str]) -> Reader[tuple[str, ...]]:
    """A list of strings without repetition."""

    def read(value: object) -> tuple[str, ...]:
        place = FieldPath()
        result: dict[str, None] = {}
        for index, item in enumerate(items(value, what)):
            with place.at(index):
                word = read_item(item)
                if word in result:
                    raise refusal(f"is {shown(word)}, which is listed before; remove it")
                result[word] = None
        place.close()
        return tuple(result)

    return read
