"""A job in the native form while it is assembled, and the location of each of its parts.

The core validates the result. A problem is reported at the location that the part came from.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.errors import Invalid
from phalanx.core.model import GangMembers
from phalanx.core.spec.fields import joined
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.manifest.overrides import with_overrides
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.read_options import ReadOptions

#: The role of a PodGroup without pods, while its own fields are validated.
_PLACEHOLDER = {"placeholder": {"command": "true"}}


class LocatedValue(NamedTuple):
    """A value and the location it was read from."""

    value: object
    location: SourceLocation


class RoleDraft:
    """A role in the native form, with the locations of its fields."""

    def __init__(self, location: SourceLocation) -> None:
        self.fields: dict[str, object] = {}
        #: Path relative to the role → location.
        self.origins: dict[str, SourceLocation] = {"": location}

    @property
    def location(self) -> SourceLocation:
        return self.origins[""]

    @property
    def replicas(self) -> int:
        count = self.fields.get("replicas")
        return count if isinstance(count, int) else 1

    def put(self, name: str, value: object, location: SourceLocation) -> None:
        """Set a field, unless the value is None."""
        if value is not None:
            self.fields[name] = value
            self.origins[name] = location

    def put_in(self, name: str, key: str, value: object, location: SourceLocation) -> None:
        """Set one entry of a field that is a mapping."""
        entries = self.fields.setdefault(name, {})
        if isinstance(entries, dict):
            entries[key] = value
        self.origins[joined(name, key)] = location


class JobDraft:
    """A job in the native form, with the locations of its fields."""

    def __init__(self, location: SourceLocation) -> None:
        self.fields: dict[str, object] = {}
        self.roles: dict[str, RoleDraft] = {}
        #: The members of a gang that is submitted in parts; None for any other job.
        self.part: GangMembers | None = None
        self._origins: dict[str, SourceLocation] = {"": location}

    @property
    def location(self) -> SourceLocation:
        return self._origins[""]

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.fields.get('namespace', 'default')}/{self.fields.get('name')}"

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles.values())

    def put(self, name: str, value: object, location: SourceLocation) -> None:
        """Set a field, unless the value is None. A later value replaces an earlier one."""
        if value is not None:
            self.fields[name] = value
            self._origins[name] = location

    def put_in(self, name: str, key: str, value: object, location: SourceLocation) -> None:
        """Set one entry of a field that is a mapping."""
        entries = self.fields.setdefault(name, {})
        if isinstance(entries, dict):
            entries[key] = value
        self._origins[joined(name, key)] = location

    def put_all(self, values: Mapping[str, LocatedValue]) -> None:
        for name, (value, location) in values.items():
            self.put(name, value, location)

    def put_minimum(self, minimum: int, location: SourceLocation) -> None:
        """Set the minimum, unless it is all tasks, which is the default."""
        if minimum < self.size:
            self.put("min_available", minimum, location)

    def locate(self, path: str, location: SourceLocation) -> None:
        """Set the location of a part of a field."""
        self._origins[path] = location

    def origin(self, path: str) -> SourceLocation:
        """The location of a path of the native form, or of the closest part that contains it."""
        for known in sorted(self._origins, key=len, reverse=True):
            if path == known or path.startswith((f"{known}.", f"{known}[")) or not known:
                rest = path.removeprefix(known).lstrip(".")
                here = self._origins[known]
                return here.below(rest) if known else here
        raise AssertionError("bug: a draft without a location")

    def spec(self, options: ReadOptions, problems: ProblemList) -> JobSpec | None:
        """The validated job; None if it has a problem, which is added to the list."""
        roles = {}
        for name, role in self.roles.items():
            roles[name] = role.fields
            prefix = joined("roles", name)
            for path, location in role.origins.items():
                dot = "." if path else ""
                self._origins[f"{prefix}{dot}{path}"] = location
        try:
            spec = job_spec(
                with_overrides({**self.fields, "roles": roles or _PLACEHOLDER}, options.overrides),
                priority_classes=options.priority_classes,
                lost_after=options.lost_after,
                timezones=options.timezones,
                run_as_users=options.run_as_users,
                image_map=options.image_map,
            )
            return spec if roles else replace(spec, roles=(), min_available=0)
        except Invalid as error:
            for problem in error.problems:
                problems.add(self.origin(problem.path), problem.message)
            return None
