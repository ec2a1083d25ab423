"""From what a user wrote to a `JobSpec`, or to every problem in it by its path.

`schema` reads the fields; this module holds the rules between them. A document is refused whole,
and nothing is expanded before its size is known to be sane.
"""

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec import names
from phalanx.core.spec.durations import printed
from phalanx.core.spec.fields import FieldPath, as_key, mapping, read_fields, refusal, shown
from phalanx.core.spec.job import NEEDS_RUNTIME, SECOND, JobSpec, Micros, Role
from phalanx.core.spec.references import references
from phalanx.core.spec.schema import JOB_FIELDS, ROLE_FIELDS, SHORT_FIELDS, TASK_LIMIT

#: A fenced task must be dead before its gang is placed again: the room its lease leaves for that.
FENCE_MARGIN: Micros = 7 * SECOND

#: A run of a cron is named after the cron and its minute.
CRON_NAME_LIMIT = names.NAME_LIMIT - len("-20260131020000")

_ROLE_FIELDS_ASTRAY = {
    name: f"is a field of a role; write it as roles.NAME.{name}" for name in ROLE_FIELDS
}
_JOB_FIELDS_ASTRAY = {
    name: f"is a field of the job; write {name} beside roles" for name in JOB_FIELDS
}

#: Fields read so far; those with a problem are absent.
_Values = dict[str, Any]


def job_spec(
    document: object,
    *,
    priority_classes: Mapping[str, int] = MappingProxyType({}),
    lost_after: Micros = 30 * SECOND,
    timezones: Container[str] | None = None,
) -> JobSpec:
    """The job of a document in the native form.

    `timezones` are the ones that exist; without it their names are only checked for their form.
    """
    if not isinstance(document, Mapping):
        raise Invalid([Problem("", f"a job is a mapping with roles in it, not {shown(document)}")])
    place = FieldPath()
    values = read_fields(document, JOB_FIELDS, place, _ROLE_FIELDS_ASTRAY)
    roles = _read_roles(values.pop("roles", {}), place.at("roles"))
    _settle_priority(values, priority_classes, place, is_given=document.get("priority") is not None)
    _settle_minimums(values, roles, place)
    _check_completion(values, roles, place)
    _check_references(roles, place)
    _check_fence(values, lost_after, place)
    _check_schedule(values, timezones, place)
    place.close()
    return JobSpec(roles=tuple(Role(name=name, **role) for name, role in roles.items()), **values)


def is_short_form(document: object) -> bool:
    """Whether a document means to be in the short form, however badly."""
    return (
        isinstance(document, Mapping)
        and "roles" not in document
        and not document.keys().isdisjoint(("command", "gang_size", "depends_on"))
    )


def short_form(document: object) -> JobSpec:
    """The job of `{command, gang_size, resources, priority, depends_on}`."""
    if not isinstance(document, Mapping):
        raise Invalid([Problem("", f"a job is a mapping with a command, not {shown(document)}")])
    place = FieldPath()
    read_fields(document, SHORT_FIELDS, place)
    place.close()
    worker = {
        "command": document["command"],
        "replicas": document.get("gang_size"),
        "resources": document.get("resources"),
    }
    return job_spec(
        {
            "roles": {"worker": worker},
            "priority": document.get("priority"),
            "after": document.get("depends_on"),
        }
    )


def _read_roles(document: Mapping[Any, object], place: FieldPath) -> dict[str, _Values]:
    roles: dict[str, _Values] = {}
    for key, role in document.items():
        here = place.at(as_key(key))
        with here:
            _check_role_name(key)
        roles[as_key(key)] = {}
        with here:
            fields = mapping(role, "a mapping with a command, like {command: ./train}")
            roles[as_key(key)] = read_fields(fields, ROLE_FIELDS, here, _JOB_FIELDS_ASTRAY)
            _settle_program(roles[as_key(key)], fields, here)
    return roles


def _settle_program(role: _Values, given: Mapping[Any, object], place: FieldPath) -> None:
    """What a task runs: a command, the program of its image, or a command in its image."""
    has_image = given.get("image") is not None
    if given.get("command") is None:
        role["command"] = ()
        if not has_image:
            place.at("command").wrong("is missing; it has no default")
    if given.get("args"):
        if not has_image:
            place.at("args").wrong("are for the program of an image; write them in command")
        elif given.get("command") is not None:
            place.at("args").wrong("are given together with command; write them in command")
    if has_image and "node_selector" in role:
        role["node_selector"] = NEEDS_RUNTIME | role["node_selector"]


def _check_role_name(key: object) -> None:
    if key == "all":
        raise refusal(
            "is a name that no role can have: complete_when gives it a meaning; rename it"
        )
    names.dns_label(key)


def _settle_priority(
    values: _Values, classes: Mapping[str, int], place: FieldPath, *, is_given: bool
) -> None:
    name = values.get("priority_class")
    if name is None:
        return
    if is_given:
        place.at("priority").wrong("is given together with priority_class; write one of them")
    if name in classes:
        values["priority"] = classes[name]
    elif classes:
        known = ", ".join(sorted(classes))
        place.at("priority_class").wrong(f"is {shown(name)}, which is not configured; use {known}")
    else:
        place.at("priority_class").wrong(
            f"is {shown(name)}, but no classes are configured; write priority"
        )


def _settle_minimums(values: _Values, roles: dict[str, _Values], place: FieldPath) -> None:
    # With an explicit minimum over all roles, each role is free to have none.
    over_all = values.get("min_available")
    is_over_all = "min_available" not in values or over_all is not None
    for name, role in roles.items():
        least, replicas = role.get("min", 0), role.get("replicas")
        if least is None:
            role["min"] = 0 if is_over_all else replicas
        elif replicas is not None and least > replicas:
            place.at("roles").at(name).at("min").wrong(
                f"is {least} but replicas is {replicas}; lower min or raise replicas"
            )
    total = sum(role.get("replicas", 0) for role in roles.values())
    if total > TASK_LIMIT:
        place.at("roles").wrong(f"have {total} replicas in all; a job has at most {TASK_LIMIT}")
    if not all("replicas" in role and "min" in role for role in roles.values()):
        return
    needed = sum(role["min"] for role in roles.values())
    if over_all is not None and over_all > total:
        place.at("min_available").wrong(
            f"is {over_all} but the roles have {total} replicas in all; lower it to {total}"
        )
    if roles and needed == 0 and not is_over_all:
        place.at("roles").wrong("have a min of 0 each; set min_available, or the min of a role")
    values["min_available"] = max(over_all or 0, needed)


def _check_completion(values: _Values, roles: dict[str, _Values], place: FieldPath) -> None:
    wanted = values.get("complete_when", "all")
    if roles and wanted != "all" and wanted not in roles:
        known = ", ".join(list(roles)[:5])
        place.at("complete_when").wrong(
            f"is {shown(wanted)}, which is not a role; write all or the name of a role: {known}"
        )


def _check_references(roles: dict[str, _Values], place: FieldPath) -> None:
    for name, role in roles.items():
        for variable, value in role.get("env", {}).items():
            here = place.at("roles").at(name).at("env").at(variable)
            for reference in references(value):
                if reference.role is not None and reference.role not in roles:
                    known = ", ".join(list(roles)[:5])
                    here.wrong(f"refers to the role {reference.role}, which is none of {known}")
                if not 0 < (reference.port or 1) < 2**16:
                    here.wrong(f"has the port {reference.port}; write one from 1 to 65535")


def _check_fence(values: _Values, lost_after: Micros, place: FieldPath) -> None:
    room = max(0, lost_after - FENCE_MARGIN)
    grace = values.get("grace")
    if values.get("fence") and grace is not None and grace >= room:
        place.at("grace").wrong(
            f"is {printed(grace)}, too long for a job with fence: its tasks must stop"
            f" before another worker may start them; write less than {printed(room)}"
        )


def _check_schedule(values: _Values, timezones: Container[str] | None, place: FieldPath) -> None:
    schedule = values.get("schedule")
    if schedule is None:
        return
    if values.get("after"):
        place.at("after").wrong("cannot be given together with schedule; remove one of them")
    if timezones is not None and schedule.timezone not in timezones:
        place.at("schedule").at("timezone").wrong(
            f"is {shown(schedule.timezone)}, which is not a time zone; write one like Europe/Zurich"
        )
    if len(values.get("name") or "") > CRON_NAME_LIMIT:
        place.at("name").wrong(
            f"is too long for a job with schedule, whose runs have their minute added; use at"
            f" most {CRON_NAME_LIMIT} characters"
        )
