"""A mapping in a document, read key by key: what nobody has asked for in the end is unsupported."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from phalanx.core.errors import Invalid
from phalanx.core.spec.fields import Reader, as_key, items, mapping, refusal, shown
from phalanx.manifest.problems import ProblemList, SourceLocation

T = TypeVar("T")


class StrictMapping:
    def __init__(self, data: object, where: SourceLocation, findings: ProblemList) -> None:
        self.where = where
        self.findings = findings
        self.is_given = data is not None
        self._children: list[StrictMapping] = []
        self._left: dict[str, object] = {}
        try:
            found = mapping({} if data is None else data, "a mapping")
        except Invalid as error:
            findings.all_wrong(where, error.problems)
        else:
            self._left = {as_key(key): value for key, value in found.items()}

    def __contains__(self, key: str) -> bool:
        return self._left.get(key) is not None

    def rest(self) -> list[str]:
        """Those that nobody has asked for yet."""
        return list(self._left)

    def take(self, key: str) -> object:
        """The value as it is; None if there is none."""
        return self._left.pop(key, None)

    def read(self, key: str, reader: Reader[T]) -> T | None:
        """The value in its normal form; None if there is none, or it is wrong."""
        value = self.take(key)
        if value is None:
            return None
        try:
            return reader(value)
        except Invalid as error:
            self.findings.all_wrong(self.where.at(key), error.problems)
            return None

    def required(self, key: str, reader: Reader[T], cure: str) -> T | None:
        if key not in self:
            self.findings.wrong(self.where.at(key), f"is missing; {cure}")
        return self.read(key, reader)

    def view(self, key: str) -> "StrictMapping":
        return self._child(self.take(key), key)

    def views(self, key: str) -> list["StrictMapping"]:
        """The mappings of a list."""
        found = self.read(key, lambda value: items(value, "a list of mappings")) or []
        return [self._child(item, key, index) for index, item in enumerate(found)]

    def named(self, key: str) -> dict[str, "StrictMapping"]:
        """The mappings of a mapping, by name."""
        parent = self.view(key)
        return {name: parent.view(name) for name in parent.rest()}

    def _child(self, data: object, *keys: str | int) -> "StrictMapping":
        child = StrictMapping(data, self.where.at(*keys), self.findings)
        self._children.append(child)
        return child

    def skip(self, *keys: str) -> None:
        """These change nothing that we do."""
        for key in keys:
            self._left.pop(key, None)

    def unsupported(self, keys: Iterable[str], why: str) -> None:
        for key in keys:
            if self.take(key) is not None:
                self.findings.unsupported(self.where.at(key), why)

    def note(self, key: str, message: str) -> None:
        """It changes nothing, and its author should know."""
        if self.take(key) is not None:
            self.findings.read_as(self.where.at(key), message)

    def note_retention(self) -> None:
        self.note(
            "ttlSecondsAfterFinished",
            "is not used: the server's own retention decides how long a finished job is kept",
        )

    def wrong(self, message: str, *keys: str | int) -> None:
        self.findings.wrong(self.where.at(*keys), message)

    def close(self) -> None:
        """Everything in it has been read: the rest, and the rest of all below, is unsupported."""
        for key, value in self._left.items():
            if value is not None:
                self.findings.unsupported(self.where.at(key))
        self._left = {}
        for child in self._children:
            child.close()


def word(value: object) -> str:
    """A string, or a number that somebody did not put in quotes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise refusal(f"is {shown(value)}; write a string")
    return value


def whole(low: int) -> Reader[int]:
    """A whole number, also in quotes, as labels and annotations have it."""

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
    def read(value: object) -> T:
        if not isinstance(value, str) or value not in table:
            raise refusal(f"is {shown(value)}; write {' or '.join(table)}")
        return table[value]

    return read
