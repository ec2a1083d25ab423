"""Readers for the values of a document, and the problems that they find.

A reader takes any object and returns its normal form, or raises `Invalid` with paths relative to
that object. A `FieldPath` collects the problems of many readers under their paths. No reader goes
deeper into a value than it needs to: a value can contain itself.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from phalanx.core.errors import Invalid, Problem

#: A refusal lists this many problems at most.
PROBLEM_LIMIT = 100

#: Entries of a mapping or a list of strings.
ENTRY_LIMIT = 1000

_SHOWN_CHARS = 60
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)
Reader = Callable[[object], T]


def refusal(message: str) -> Invalid:
    """An `Invalid` with one problem of the value itself; the message continues its path."""
    return Invalid([Problem("", message)])


def shown(value: object) -> str:
    """The value as a message quotes it: scalars shortened, anything else by its kind."""
    if isinstance(value, str):
        clipped = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
        return json.dumps(clipped, ensure_ascii=not clipped.isprintable())
    if value is None or isinstance(value, bool | float):
        return json.dumps(value)
    if isinstance(value, int):
        # Python refuses to print integers of thousands of digits.
        return str(value) if value.bit_length() <= 128 else "a number of more than 38 digits"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def joined(path: str, key: str | int) -> str:
    """The path of an entry: `roles.worker`, `after[0]`, `env["A B"]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key) or len(key) > _SHOWN_CHARS:
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


class FieldPath:
    """A path in a document, and the problems found so far in the whole document.

    As a context manager it catches the `Invalid` of a reader and adds its problems.
    """

    __slots__ = ("_above", "_key", "_problems")

    def __init__(self, above: "FieldPath | None" = None, key: str | int = "") -> None:
        """The path of an entry of `above`; without it, of the document."""
        self._above = above
        self._key = key
        self._problems: list[Problem] = [] if above is None else above._problems  # noqa: SLF001

    def at(self, key: str | int) -> "FieldPath":
        return FieldPath(self, key)

    @property
    def path(self) -> str:
        # Written when a problem is found: most fields have none.
        return "" if self._above is None else joined(self._above.path, self._key)

    @property
    def is_full(self) -> bool:
        return len(self._problems) >= PROBLEM_LIMIT

    def problem(self, message: str) -> None:
        """Add a problem at this path, unless the document has enough already."""
        if not self.is_full:
            self._problems.append(Problem(self.path, message))

    def add(self, error: Invalid) -> None:
        """Add the problems of a reader, whose paths are relative to this one."""
        path = self.path
        for problem in error.problems:
            dot = "." if path and problem.path and not problem.path.startswith("[") else ""
            if not self.is_full:
                self._problems.append(Problem(path + dot + problem.path, problem.message))

    def raise_problems(self) -> None:
        """Raise `Invalid` with all problems of the document, if there are any."""
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
        self.add(error)
        return True


#: The default of a field that must be given.
REQUIRED: Any = object()


def as_is(value: Any) -> object:
    return value


@dataclass(frozen=True, eq=False)
class Field:
    read: Reader[Any]
    default: object = None  #: as a user writes it; None leaves the normal form null
    write: Callable[[Any], object] = as_is  #: turns the normal form into what a user writes

    @cached_property
    def absent(self) -> Any:
        """The normal form of the default. It is shared: values that were read never change."""
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
    path: FieldPath,
    misplaced: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The fields without a problem, with defaults for those that are absent or null.

    `misplaced` has a message for each field that belongs elsewhere in the document.
    """
    values: dict[str, Any] = {}
    for key in document:
        if key not in table:
            path.at(as_key(key)).problem(misplaced.get(key) or _unknown(key, table, path))
    for name, field in table.items():
        given = document.get(name)
        if given is not None:
            try:
                values[name] = field.read(given)
            except Invalid as error:
                path.at(name).add(error)
        elif field.default is REQUIRED:
            path.at(name).problem("is missing; it is required")
        else:
            values[name] = field.absent
    return values


def write_fields(struct: object, table: Mapping[str, Field]) -> dict[str, object]:
    """The fields of a struct as a user writes them, without those that have their default."""
    written = {
        name: field.write(value)
        for name, field in table.items()
        if (value := getattr(struct, name)) is not None
    }
    return {name: value for name, value in written.items() if value != table[name].default}


def unknown_keys(document: object, table: Mapping[str, Field]) -> list[str]:
    """The keys of a mapping that are not in the table, as text."""
    if not isinstance(document, Mapping):
        return []
    return [as_key(key) for key in document if key not in table]


def read_table(value: object, what: str, table: Mapping[str, Field]) -> dict[str, Any]:
    """All fields of a mapping. Raises Invalid."""
    path = FieldPath()
    values = read_fields(mapping(value, what), table, path)
    path.raise_problems()
    return values


def as_key(key: object) -> str:
    return key if isinstance(key, str) else shown(key)


def _unknown(key: object, known: Iterable[str], path: FieldPath) -> str:
    """The message about a field that does not exist."""
    if not isinstance(key, str):
        return "is not a known field; field names are strings"
    # Comparing is slow, and a document may have very many unknown fields.
    near = [] if path.is_full or len(key) > 64 else difflib.get_close_matches(key, known, n=1)
    return f"is not a known field; {f'did you mean {near[0]}?' if near else 'remove it'}"


# Readers of scalars


def text(value: object) -> str:
    """Any string that can be passed to a process and stored in every database."""
    if not isinstance(value, str):
        cure = "write it in quotes" if isinstance(value, int | float) else "write a string"
        raise refusal(f"is {shown(value)}, not a string; {cure}")
    if "\0" in value:
        raise refusal("contains a NUL character; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal("contains half of a surrogate pair; remove it") from None
    return value


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise refusal(f"is {shown(value)}; write true or false")
    return value


def integer(low: int, high: int) -> Reader[int]:
    """A whole number from `low` to `high`."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refusal(f"is {shown(value)}; write a whole number from {low} to {high}")
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise refusal(f"is {shown(value)}; it must be {bound}")
        return value

    return read


def one_of(words: type[Word]) -> Reader[Word]:
    """One of the values of an enumeration."""

    def read(value: object) -> Word:
        for word in words:
            if value == word.value and isinstance(value, str):
                return word
        raise refusal(f"is {shown(value)}; write {' or '.join(words)}")

    return read


def check_count(entries: Sized, limit: int, cure: str) -> None:
    """Refuse a list or a mapping with too many entries, before any of them is read."""
    if len(entries) > limit:
        raise refusal(f"has {len(entries)} entries; it has at most {limit}: {cure}")


def texts(
    what: str, read_key: Reader[str], read_item: Reader[str], limit: int = ENTRY_LIMIT
) -> Reader[dict[str, str]]:
    """A mapping of strings to strings."""

    def read(value: object) -> dict[str, str]:
        path = FieldPath()
        result: dict[str, str] = {}
        check_count(mapping(value, what), limit, "remove some")
        for key, item in mapping(value, what).items():
            with path.at(as_key(key)):
                result[read_key(key)] = read_item(item)
        path.raise_problems()
        return result

    return read


def distinct(
    what: str, read_item: Reader[str], limit: int = ENTRY_LIMIT
) -> Reader[tuple[str, ...]]:
    """A list of strings without repetition."""

    def read(value: object) -> tuple[str, ...]:
        path = FieldPath()
        result: dict[str, None] = {}
        check_count(items(value, what), limit, "remove some")
        for index, item in enumerate(items(value, what)):
            with path.at(index):
                word = read_item(item)
                if word in result:
                    raise refusal(f"is {shown(word)}, which is already in the list; remove it")
                result[word] = None
        path.raise_problems()
        return tuple(result)

    return read
