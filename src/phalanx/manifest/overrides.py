"""Fields of a job that are set beside its file, and replace those of the file."""

from collections.abc import Mapping
from typing import Any

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.schema import JOB_FIELDS, ROLE_FIELDS

#: The number of tasks, which is `replicas` of the only role.
GANG = "gang"
#: Fields of a role that set only some entries.
_MERGED = ("resources", "env")
#: Fields that mean the same for every role of a job.
_OF_ALL_ROLES = ("env", "workdir")


def with_overrides(document: object, overrides: Mapping[str, Any]) -> object:
    """A job in the native form with these fields instead of its own: fields of the job, of its
    roles, or `gang`. Of `resources` and `env`, the other entries stay. Raises Invalid.
    """
    roles = document.get("roles") if isinstance(document, Mapping) else None
    if not overrides or not isinstance(document, Mapping) or not isinstance(roles, Mapping):
        return document
    problems = [each for field in overrides for each in _problems(field, roles)]
    if problems:
        raise Invalid(problems)
    of_job = {name: value for name, value in overrides.items() if name in JOB_FIELDS}
    of_role = {name: value for name, value in overrides.items() if name in ROLE_FIELDS}
    if GANG in overrides:
        of_role["replicas"] = overrides[GANG]
    return {
        **document,
        **of_job,
        "roles": {name: _with_fields(role, of_role) for name, role in roles.items()},
    }


def _problems(field: str, roles: Mapping[str, Any]) -> list[Problem]:
    if field in JOB_FIELDS and field != "roles":
        return []
    if field not in ROLE_FIELDS and field != GANG:
        return [Problem(field, "is not a field of a job or a role that can be overridden")]
    if len(roles) > 1 and field not in _OF_ALL_ROLES:
        named = ", ".join(map(str, roles))
        return [
            Problem(field, f"cannot be overridden: the job has the roles {named}; edit the file")
        ]
    return []


def _with_fields(role: object, fields: Mapping[str, Any]) -> object:
    if not isinstance(role, Mapping):
        return role
    merged = dict(fields)
    for name in _MERGED:
        if isinstance(role.get(name), Mapping) and isinstance(fields.get(name), Mapping):
            merged[name] = {**role[name], **fields[name]}
    return {**role, **merged}
