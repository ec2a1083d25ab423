"""Problems and warnings of a translation, each with the location that it is about.

A problem refuses the input. A part that Phalanx does not support is a problem too, unless the user
chose to ignore such parts: then it is a warning.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.fields import PROBLEM_LIMIT, joined


class Unsupported(msgspec.Struct, frozen=True, tag=True):
    """A part that was ignored because Phalanx does not support it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path} {self.message}"


class Reinterpreted(msgspec.Struct, frozen=True, tag=True):
    """A part that has a slightly different meaning in Phalanx."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path} {self.message}"


ManifestWarning = Unsupported | Reinterpreted


class SourceLocation(NamedTuple):
    """A path in one of many objects."""

    source: str  #: the object, such as `document 2`
    path: str = ""

    def at(self, *keys: str | int) -> "SourceLocation":
        """The location of an entry."""
        path = self.path
        for key in keys:
            path = joined(path, key)
        return SourceLocation(self.source, path)

    def below(self, path: str) -> "SourceLocation":
        """The location with a path relative to this one."""
        dot = "." if self.path and path and not path.startswith("[") else ""
        return SourceLocation(self.source, self.path + dot + path)

    def __str__(self) -> str:
        return f"{self.source}: {self.path}".rstrip()


class ProblemList:
    """The problems and warnings of one translation."""

    def __init__(self, *, ignore_unsupported: bool = False) -> None:
        self.ignore_unsupported = ignore_unsupported
        self.warnings: list[ManifestWarning] = []
        self._problems: list[Problem] = []
        #: Notes that have been added: what each is about, and its message.
        self._noted: set[tuple[str, str]] = set()

    def add(self, location: SourceLocation, message: str) -> None:
        self._add(Problem(str(location), message))

    def add_all(self, location: SourceLocation, problems: Iterable[Problem]) -> None:
        """Add problems whose paths are relative to the location."""
        for problem in problems:
            self.add(location.below(problem.path), problem.message)

    def add_unlocated(self, problems: Iterable[Problem]) -> None:
        """Add problems of the only object, whose paths need no source."""
        for problem in problems:
            self._add(problem)

    def _add(self, problem: Problem) -> None:
        if len(self._problems) < PROBLEM_LIMIT:
            self._problems.append(problem)

    def add_unsupported(self, location: SourceLocation, what: str = "is not supported") -> None:
        """Add a warning if unsupported parts are ignored, and a problem otherwise."""
        if self.ignore_unsupported:
            self.warnings.append(Unsupported(str(location), f"{what}; it was ignored"))
        else:
            self.add(location, f"{what}; remove it, or ignore it with --ignore-unsupported")

    def add_note(self, location: SourceLocation, message: str, *, about: str | None = None) -> None:
        """Add a warning about a part that has a slightly different meaning here.

        The same note about the same part of further objects is not repeated. `about` names what
        has the same part in other places too.
        """
        subject = (location.path if about is None else about, message)
        if subject not in self._noted:
            self._noted.add(subject)
            self.warnings.append(Reinterpreted(str(location), message))

    def raise_problems(self) -> None:
        """Raise `Invalid` with all problems, if there are any."""
        if self._problems:
            raise Invalid(self._problems)
