"""What is found while the documents of a file are read, each thing by where it was written.

Problems refuse the file. A part that Phalanx cannot honour is a problem too, unless the user asked
to leave such parts out: then it is a warning.
"""

from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.fields import PROBLEM_LIMIT, joined
from phalanx.core.spec.job import SECOND, Micros

_CURE = "remove it, or leave it out with --ignore-unsupported"


class ReadOptions(msgspec.Struct, frozen=True):
    """How files are read."""

    priority_classes: Mapping[str, int] = MappingProxyType({})
    lost_after: Micros = 30 * SECOND
    timezones: Container[str] | None = None  #: those that exist; None takes any name
    ignore_unsupported: bool = False  #: leave out what cannot be honoured, with a warning
    ignore_image: bool = False  #: run commands on the bare worker
    whole_gangs: bool = False  #: refuse a part of a gang, which would wait for the rest


class Unsupported(msgspec.Struct, frozen=True, tag=True):
    """A part that was left out because it cannot be honoured."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path} {self.message}"


class ReadAs(msgspec.Struct, frozen=True, tag=True):
    """A part that means something a little different here."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path} {self.message}"


Told = Unsupported | ReadAs


class SourceLocation(NamedTuple):
    """A place in a file of many documents."""

    document: int  #: from 1
    path: str = ""

    def at(self, *keys: str | int) -> "SourceLocation":
        path = self.path
        for key in keys:
            path = joined(path, key)
        return SourceLocation(self.document, path)

    def below(self, path: str) -> "SourceLocation":
        dot = "." if self.path and path and not path.startswith("[") else ""
        return SourceLocation(self.document, self.path + dot + path)

    def __str__(self) -> str:
        return f"document {self.document}: {self.path}".rstrip()


class ProblemList:
    def __init__(self, *, ignore_unsupported: bool = False) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Told] = []
        self.ignore_unsupported = ignore_unsupported

    def wrong(self, where: SourceLocation, message: str) -> None:
        if len(self.problems) < PROBLEM_LIMIT:
            self.problems.append(Problem(str(where), message))

    def all_wrong(self, where: SourceLocation, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.wrong(where.below(problem.path), problem.message)

    def unsupported(self, where: SourceLocation, what: str = "is not supported") -> None:
        if self.ignore_unsupported:
            self.warnings.append(Unsupported(str(where), f"{what}; it was ignored"))
        else:
            self.wrong(where, f"{what}; {_CURE}")

    def read_as(self, where: SourceLocation, message: str) -> None:
        self.warnings.append(ReadAs(str(where), message))

    def close(self) -> None:
        if self.problems:
            raise Invalid(self.problems)
