"""A job in the native form while it is put together, and where each part of it was written.

The core validates it; what is wrong with it is told in the words of its own document.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.errors import Invalid
from phalanx.core.model import GangMembers
from phalanx.core.spec.fields import joined
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.manifest.problems import ProblemList, ReadOptions, SourceLocation

#: Stands in for the roles of a PodGroup without pods while its own words are checked.
_NOBODY = {"nobody": {"command": "true"}}


class Said(NamedTuple):
    """A value and where it was written."""

    value: object
    where: SourceLocation


class RoleDraft:
    def __init__(self, where: SourceLocation) -> None:
        self.fields: dict[str, object] = {}
        #: By their paths from the role.
        self.origins: dict[str, SourceLocation] = {"": where}

    @property
    def where(self) -> SourceLocation:
        return self.origins[""]

    @property
    def replicas(self) -> int:
        count = self.fields.get("replicas")
        return count if isinstance(count, int) else 1

    def put(self, name: str, value: object, where: SourceLocation) -> None:
        if value is not None:
            self.fields[name] = value
            self.origins[name] = where

    def put_in(self, name: str, key: str, value: object, where: SourceLocation) -> None:
        """One entry of a field that is a mapping."""
        entries = self.fields.setdefault(name, {})
        if isinstance(entries, dict):
            entries[key] = value
        self.origins[joined(name, key)] = where


class Draft:
    def __init__(self, where: SourceLocation) -> None:
        self.fields: dict[str, object] = {}
        self.roles: dict[str, RoleDraft] = {}
        #: For pods that name their gang: how much of it they are.
        self.part: GangMembers | None = None
        self._origins: dict[str, SourceLocation] = {"": where}

    @property
    def where(self) -> SourceLocation:
        return self._origins[""]

    @property
    def member(self) -> str:
        """`namespace/name`."""
        return f"{self.fields.get('namespace', 'default')}/{self.fields.get('name')}"

    def put(self, name: str, value: object, where: SourceLocation) -> None:
        """Of an earlier and a later value the later one stands."""
        if value is not None:
            self.fields[name] = value
            self._origins[name] = where

    def locate(self, path: str, where: SourceLocation) -> None:
        """Where a part of a field was written."""
        self._origins[path] = where

    def put_minimum(self, least: int, where: SourceLocation) -> None:
        """A minimum of all is what every role has by itself."""
        if least < self.size:
            self.put("min_available", least, where)

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles.values())

    def put_all(self, said: Mapping[str, Said]) -> None:
        for name, one in said.items():
            self.put(name, one.value, one.where)

    def origin(self, path: str) -> SourceLocation:
        """Where the part with this path of the native form was written, or what it is part of."""
        for known in sorted(self._origins, key=len, reverse=True):
            if path == known or path.startswith((f"{known}.", f"{known}[")) or not known:
                rest = path.removeprefix(known).lstrip(".")
                here = self._origins[known]
                return here.below(rest) if known else here
        raise AssertionError("bug: a draft without an origin")

    def spec(self, settings: ReadOptions, findings: ProblemList) -> JobSpec | None:
        roles = {}
        for name, role in self.roles.items():
            roles[name] = role.fields
            prefix = joined("roles", name)
            for path, where in role.origins.items():
                dot = "." if path else ""
                self._origins[f"{prefix}{dot}{path}"] = where
        try:
            spec = job_spec(
                {**self.fields, "roles": roles or _NOBODY},
                priority_classes=settings.priority_classes,
                lost_after=settings.lost_after,
                timezones=settings.timezones,
            )
            return spec if roles else replace(spec, roles=(), min_available=0)
        except Invalid as error:
            for problem in error.problems:
                findings.wrong(self.origin(problem.path), problem.message)
            return None
