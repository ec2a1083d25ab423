"""A mapping of an object that is read key by key, so that no key is overlooked.

A key that no code has read by the end is reported as unsupported.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from phalanx.core.errors import Invalid
from phalanx.core.spec import fields
from phalanx.core.spec.fields import Reader, as_key, items, refusal, shown
from phalanx.manifest.problems import ProblemList, SourceLocation

T = TypeVar("T")


class StrictMapping:
    """The unread keys of a mapping, and the mappings in it that were opened."""

    def __init__(self, data: object, location: SourceLocation, problems: ProblemList) -> None:
        self.location = location
        self.problems = problems
        self._opened: list[StrictMapping] = []
        self._unread: dict[str, object] = {}
        try:
            entries = fields.mapping({} if data is None else data, "a mapping")
        except Invalid as error:
            problems.add_all(location, error.problems)
        else:
            self._unread = {as_key(key): value for key, value in entries.items()}

    def __contains__(self, key: str) -> bool:
        return self._unread.get(key) is not None

    def unread(self) -> list[str]:
        """The keys that have not been read."""
        return list(self._unread)

    # Reading

    def take(self, key: str) -> object:
        """The value as it is; None if it is absent."""
        return self._unread.pop(key, None)

    def read(self, key: str, reader: Reader[T]) -> T | None:
        """The normal form of the value; None if it is absent or invalid."""
        value = self.take(key)
        if value is None:
            return None
        try:
            return reader(value)
        except Invalid as error:
            self.problems.add_all(self.location.at(key), error.problems)
            return None

    def required(self, key: str, reader: Reader[T], cure: str) -> T | None:
        """The same, with a problem if the key is absent."""
        if key not in self:
            self.problem(f"is missing; {cure}", key)
        return self.read(key, reader)

    def mapping(self, key: str) -> "StrictMapping":
        """The mapping of a key; an empty one if it is absent."""
        return self._open(self.take(key), key)

    def mappings(self, key: str) -> list["StrictMapping"]:
        """The mappings in the list of a key."""
        entries = self.read(key, lambda value: items(value, "a list of mappings")) or []
        return [self._open(entry, key, index) for index, entry in enumerate(entries)]

    def mappings_by_name(self, key: str) -> dict[str, "StrictMapping"]:
        """The mappings in the mapping of a key."""
        parent = self.mapping(key)
        return {name: parent.mapping(name) for name in parent.unread()}

    def _open(self, data: object, *keys: str | int) -> "StrictMapping":
        opened = StrictMapping(data, self.location.at(*keys), self.problems)
        self._opened.append(opened)
        return opened

    # Reporting

    def ignore(self, *keys: str) -> None:
        """Read keys that change nothing in Phalanx."""
        for key in keys:
            self._unread.pop(key, None)

    def unsupported(self, keys: Iterable[str], why: str) -> None:
        """Read keys that Phalanx does not support."""
        for key in keys:
            if self.take(key) is not None:
                self.problems.add_unsupported(self.location.at(key), why)

    def note(self, key: str, message: str) -> None:
        """Read a key that changes nothing in Phalanx, and warn that it does not."""
        if self.take(key) is not None:
            self.problems.add_note(self.location.at(key), message)

    def note_retention(self) -> None:
        self.note(
            "ttlSecondsAfterFinished",
            "is not used: the server's retention setting decides how long a finished job is kept",
        )

    def problem(self, message: str, *keys: str | int) -> None:
        """Add a problem of an entry, or of the mapping itself."""
        self.problems.add(self.location.at(*keys), message)

    def report_unread(self) -> None:
        """Report each unread key as unsupported, here and in every mapping that was opened."""
        for key, value in self._unread.items():
            if value is not None:
                self.problems.add_unsupported(self.location.at(key))
        self._unread = {}
        for opened in self._opened:
            opened.report_unread()


# Readers


def word(value: object) -> str:
    """A string, or a number without quotes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise refusal(f"is {shown(value)}; write a string")
    return value


def whole(low: int) -> Reader[int]:
    """A whole number, also in quotes, as in labels and annotations."""

    def read(value: object) -> int:
        is_number = isinstance(value, int | str) and not isinstance(value, bool)
        written = str(value).strip() if is_number else ""
        if not (written.isascii() and written.isdecimal() and len(written) < 10):
            raise refusal(f"is {shown(value)}; write a whole number of at least {low}")
        if int(written) < low:
            raise refusal(f"is {written}; it must be at least {low}")
        return int(written)

    return read


def choice(table: Mapping[str, T]) -> Reader[T]:
    """The value of the table that the word stands for."""

    def read(value: object) -> T:
        if not isinstance(value, str) or value not in table:
            raise refusal(f"is {shown(value)}; write {' or '.join(table)}")
        return table[value]

    return read
