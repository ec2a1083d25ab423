"""Validation: a document becomes a `JobSpec`, or a list of every problem in it with its path.

`schema` reads the fields; the rules between fields are here. A document with a problem is refused
as a whole. Sizes are checked before anything is expanded.
"""

from collections.abc import Container, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec import names
from phalanx.core.spec.durations import printed
from phalanx.core.spec.fields import FieldPath, as_key, mapping, read_fields, refusal, shown
from phalanx.core.spec.job import (
    DEPENDENCY_FIELDS,
    NEEDS_AGENT,
    NEEDS_RUNTIME,
    NEEDS_USERS,
    CheckpointPolicy,
    JobSpec,
    PartialCompletion,
    Restart,
    Role,
)
from phalanx.core.spec.placeholders import near_misses
from phalanx.core.spec.references import Reference, references
from phalanx.core.spec.schema import JOB_FIELDS, ROLE_FIELDS, SHORT_FIELDS, TASK_LIMIT
from phalanx.core.spec.secret_references import malformed_reference, referenced_secrets
from phalanx.core.spec.watch import AbnormalKind, WatchAction
from phalanx.core.time_units import SECOND, Micros

#: A fenced task must have stopped before its gang is placed again; its lease leaves this much
#: time for that.
FENCE_MARGIN: Micros = 7 * SECOND

#: A run of a cron is named after the cron and its minute.
CRON_NAME_LIMIT = names.NAME_LIMIT - len("-20260131020000")

#: Tasks of all elements of an array together.
ARRAY_TASK_LIMIT = 1_000_000

#: Tasks that the references in the variables of a role list, each time they do.
LISTED_LIMIT = 20_000

_ROLE_FIELDS_MISPLACED = {
    name: f"is a field of a role, not of the job; write it as roles.NAME.{name}"
    for name in ROLE_FIELDS
}
_JOB_FIELDS_MISPLACED = dict.fromkeys(
    JOB_FIELDS, "is a field of the job, not of a role; write it next to roles"
)

#: Fields read so far; those with a problem are absent.
_Values = dict[str, Any]


def job_spec(  # noqa: PLR0913
    document: object,
    *,
    priority_classes: Mapping[str, int] = MappingProxyType({}),
    lost_after: Micros = 30 * SECOND,
    timezones: Container[str] | None = None,
    run_as_users: Mapping[str, Container[str]] | None = None,
    image_map: Mapping[str, str] = MappingProxyType({}),
) -> JobSpec:
    """The job of a document in the native form. Raises Invalid with every problem.

    `timezones` has the names of the time zones that exist; None accepts every well-formed name.
    `run_as_users` has the users that the jobs of each namespace may choose; None accepts all.
    `image_map` has the images that are replaced by others.
    """
    if not isinstance(document, Mapping):
        raise Invalid([Problem("", f"a job is a mapping with roles, not {shown(document)}")])
    path = FieldPath()
    values = read_fields(document, JOB_FIELDS, path, _ROLE_FIELDS_MISPLACED)
    roles = _read_roles(values.pop("roles", {}), path.at("roles"))
    _settle_priority(values, priority_classes, path, is_given=document.get("priority") is not None)
    _settle_minimums(values, roles, path)
    _check_max_running(values, path)
    _check_completion(values, roles, path)
    _settle_partial_completion(values, path)
    _check_watch(values, path)
    _check_references(roles, path)
    _check_fence(values, lost_after, path)
    _settle_user(values, roles, run_as_users, path)
    for role in roles.values():
        role["image"] = image_map.get(role.get("image") or "", role.get("image"))
    _check_schedule(values, timezones, path)
    _check_array(values, roles, path)
    path.raise_problems()
    return JobSpec(roles=tuple(Role(name=name, **role) for name, role in roles.items()), **values)


def is_short_form(document: object) -> bool:
    """Whether a document is meant as the short form, valid or not."""
    return (
        isinstance(document, Mapping)
        and "roles" not in document
        and not document.keys().isdisjoint(("command", "gang_size", "depends_on"))
    )


def short_form(document: object) -> JobSpec:
    """The job of `{command, gang_size, resources, priority, queue_name, depends_on, namespace}`.

    Raises Invalid, with the paths of the short form.
    """
    if not isinstance(document, Mapping):
        raise Invalid([Problem("", f"a job is a mapping with a command, not {shown(document)}")])
    path = FieldPath()
    values = read_fields(document, SHORT_FIELDS, path)
    if "command" in values:
        _settle_secrets({"command": values["command"]}, path)
    path.raise_problems()
    replicas, defaults = values["gang_size"] or 1, _short_defaults()
    worker = replace(
        defaults.roles[0],
        command=values["command"],
        replicas=replicas,
        min=replicas,
        resources=values["resources"],
    )
    return replace(
        defaults,
        namespace=values["namespace"],
        roles=(worker,),
        min_available=replicas,
        priority=values["priority"],
        queue=values["queue_name"],
        after=values["depends_on"],
    )


@cache
def _short_defaults() -> JobSpec:
    """A job with the defaults of the fields that the short form does not have."""
    return job_spec({"roles": {"worker": {"command": "true"}}})


#: The paths of fields in the native form, and in the short form.
_SHORT_PATHS = {
    "roles.worker.replicas": "gang_size",
    "roles.worker.": "",
    "queue": "queue_name",
    "after": "depends_on",
}


def in_short_form(error: Invalid) -> Invalid:
    """The problems of a job in the short form, with the paths that its author wrote."""
    return Invalid([Problem(_short_path(each.path), each.message) for each in error.problems])


def _short_path(path: str) -> str:
    for native, short in _SHORT_PATHS.items():
        rest = path.removeprefix(native)
        if rest != path and (native.endswith(".") or not rest or rest[0] in ".["):
            return short + rest
    return path


def _read_roles(document: Mapping[Any, object], path: FieldPath) -> dict[str, _Values]:
    roles: dict[str, _Values] = {}
    for key, role in document.items():
        here = path.at(as_key(key))
        with here:
            _check_role_name(key)
        roles[as_key(key)] = {}
        with here:
            fields = mapping(role, "a mapping with a command, like {command: ./train}")
            roles[as_key(key)] = read_fields(fields, ROLE_FIELDS, here, _JOB_FIELDS_MISPLACED)
            _settle_program(roles[as_key(key)], fields, here)
            _settle_secrets(roles[as_key(key)], here)
    return roles


def _settle_program(role: _Values, given: Mapping[Any, object], path: FieldPath) -> None:
    """Decide what a task runs: a command, its image's program, or a command in its image."""
    has_image = given.get("image") is not None
    if given.get("command") is None:
        role["command"] = ()
        if not has_image:
            path.at("command").problem("is missing; it is required")
    if given.get("args"):
        if not has_image:
            path.at("args").problem(
                "are for the program of an image, and there is no image; write them in command"
            )
        elif given.get("command") is not None:
            path.at("args").problem("cannot be combined with command; write them in command")
    if given.get("security") is not None and not has_image:
        path.at("security").problem("is for containers, and there is no image; remove it")
    if has_image and "node_selector" in role:
        role["node_selector"] = NEEDS_RUNTIME | role["node_selector"]


def _settle_secrets(role: _Values, path: FieldPath) -> None:
    texts = []
    for field in ("env", "secret_files"):
        for name, value in role.get(field, {}).items():
            texts.append(value)
            malformed = malformed_reference(value)
            if malformed is not None:
                path.at(field).at(name).problem(
                    f"has {malformed}, which is not a reference to a secret; write"
                    " ${resources.NAME.KEY}, or $${resources… for the text ${resources…"
                )
    for field in ("command", "args"):
        words = role.get(field) or ()
        if referenced_secrets([words] if isinstance(words, str) else words):
            path.at(field).problem(
                "refers to a secret, and every user of a machine can read command lines; refer to"
                " it in env or secret_files"
            )
    role["secrets"] = referenced_secrets(texts)
    if role["secrets"] and "node_selector" in role:
        role["node_selector"] = NEEDS_AGENT | role["node_selector"]


def _check_role_name(key: object) -> None:
    if key == "all":
        raise refusal(
            "is reserved, because complete_when: all means every role; choose another name"
        )
    names.dns_label(key)


def _settle_priority(
    values: _Values, classes: Mapping[str, int], path: FieldPath, *, is_given: bool
) -> None:
    name = values.get("priority_class")
    if name is None:
        return
    if is_given:
        path.at("priority").problem("cannot be combined with priority_class; write one of them")
    if name in classes:
        values["priority"] = classes[name]
    elif classes:
        known = ", ".join(sorted(classes))
        path.at("priority_class").problem(
            f"is {shown(name)}, which is not a configured priority class; use one of: {known}"
        )
    else:
        path.at("priority_class").problem(
            f"is {shown(name)}, but the server has no priority classes; write priority instead"
        )


def _settle_minimums(values: _Values, roles: dict[str, _Values], path: FieldPath) -> None:
    # With an explicit minimum over all roles, the minimum of a role is 0 by default.
    over_all = values.get("min_available")
    is_over_all = "min_available" not in values or over_all is not None
    for name, role in roles.items():
        least, replicas = role.get("min", 0), role.get("replicas")
        if least is None:
            role["min"] = 0 if is_over_all else replicas
        elif replicas is not None and least > replicas:
            path.at("roles").at(name).at("min").problem(
                f"is {least} but replicas is {replicas}; lower min or raise replicas"
            )
    total = sum(role.get("replicas", 0) for role in roles.values())
    if total > TASK_LIMIT:
        path.at("roles").problem(
            f"have {total} replicas in total; a job has at most {TASK_LIMIT}: lower replicas"
        )
    if not all("replicas" in role and "min" in role for role in roles.values()):
        return
    needed = sum(role["min"] for role in roles.values())
    if over_all is not None and over_all > total:
        path.at("min_available").problem(
            f"is {over_all} but the roles have {total} replicas in total; lower it to {total}"
        )
    if roles and needed == 0 and not is_over_all:
        path.at("roles").problem(
            "all have min: 0; set min_available, or give a role a min of at least 1"
        )
    values["min_available"] = max(over_all or 0, needed)


def _check_max_running(values: _Values, path: FieldPath) -> None:
    most, least = values.get("max_running"), values.get("min_available")
    if most is None:
        return
    if values.get("restart", Restart.TASK) is not Restart.TASK:
        path.at("max_running").problem(
            f"needs restart: task, because with restart: {values['restart']} all tasks start"
            " together; change one of them"
        )
    elif least is not None and most < least:
        path.at("max_running").problem(
            f"is {most} but the minimum is {least}; raise it, or lower min_available"
        )


def _check_completion(values: _Values, roles: dict[str, _Values], path: FieldPath) -> None:
    wanted = values.get("complete_when", "all")
    if roles and wanted != "all" and wanted not in roles:
        known = ", ".join(list(roles)[:5])
        path.at("complete_when").problem(
            f"is {shown(wanted)}, which is not a role; write all, or one of: {known}"
        )


def default_partial_completion(restart: Restart, checkpoint: CheckpointPolicy) -> PartialCompletion:
    """`restart` for a job that declares a checkpoint and can start again, else `fail`."""
    if restart is Restart.NEVER or checkpoint is CheckpointPolicy.NONE:
        return PartialCompletion.FAIL
    return PartialCompletion.RESTART


def _settle_partial_completion(values: _Values, path: FieldPath) -> None:
    if not values.keys() >= {"restart", "checkpoint", "on_partial_completion"}:
        return
    if values["on_partial_completion"] is None:
        values["on_partial_completion"] = default_partial_completion(
            values["restart"], values["checkpoint"]
        )
    elif (
        values["restart"] is Restart.NEVER
        and values["on_partial_completion"] is PartialCompletion.RESTART
    ):
        path.at("on_partial_completion").problem(
            "is restart, but restart is never; write fail, or change restart"
        )


def _check_watch(values: _Values, path: FieldPath) -> None:
    if values.get("restart") is not Restart.NEVER:
        return
    for name, rules in values.get("watch", {}).items():
        for kind in AbnormalKind:
            if rules.action(kind) is WatchAction.RESTART:
                path.at("watch").at(name).at(kind).problem(
                    "restarts the gang, but restart is never; write fail, or change restart"
                )


def _check_references(roles: dict[str, _Values], path: FieldPath) -> None:
    for name, role in roles.items():
        env = path.at("roles").at(name).at("env")
        listed = 0
        for variable, value in role.get("env", {}).items():
            here = env.at(variable)
            for reference in references(value):
                listed += _listed_tasks(reference, roles)
                if reference.role is not None and reference.role not in roles:
                    known = ", ".join(list(roles)[:5])
                    here.problem(
                        f"refers to the role {reference.role}, which does not exist; use one of:"
                        f" {known}"
                    )
                if not 0 < (reference.port or 1) < 2**16:
                    here.problem(f"refers to port {reference.port}; write a port from 1 to 65535")
        if listed > LISTED_LIMIT:
            env.problem(
                f"has references that list {listed} tasks in all; the variables of a role list at"
                f" most {LISTED_LIMIT}: remove references to hosts and addresses"
            )


def _listed_tasks(reference: Reference, roles: dict[str, _Values]) -> int:
    """How long the text is that stands for a reference: one entry, or one for each task."""
    if reference.kind not in ("hosts", "addresses"):
        return 1
    return int(roles.get(reference.role or "", {}).get("replicas", 1))


def _settle_user(
    values: _Values,
    roles: dict[str, _Values],
    run_as_users: Mapping[str, Container[str]] | None,
    path: FieldPath,
) -> None:
    user, namespace = values.get("run_as_user"), values.get("namespace", "default")
    if user is None:
        return
    if run_as_users is not None and user not in run_as_users.get(namespace, ()):
        path.at("run_as_user").problem(
            f"is {shown(user)}, which jobs of namespace {namespace} may not choose; leave it out,"
            f" or ask an operator to set run_as_users on the server to {namespace}={user}"
        )
    for role in roles.values():
        if "node_selector" in role:
            role["node_selector"] = NEEDS_USERS | role["node_selector"]


def _check_fence(values: _Values, lost_after: Micros, path: FieldPath) -> None:
    room = max(0, lost_after - FENCE_MARGIN)
    grace = values.get("grace")
    if values.get("fence") and grace is not None and grace >= room:
        path.at("grace").problem(
            f"is {printed(grace)}, which is too long with fence: the tasks must have stopped"
            f" before another worker starts them; write less than {printed(room)}"
        )


def _check_schedule(values: _Values, timezones: Container[str] | None, path: FieldPath) -> None:
    schedule = values.get("schedule")
    if schedule is None:
        return
    for field in DEPENDENCY_FIELDS:
        if values.get(field):
            path.at(field).problem("cannot be combined with schedule; remove one of them")
    if timezones is not None and schedule.timezone not in timezones:
        path.at("schedule").at("timezone").problem(
            f"is {shown(schedule.timezone)}, which is not a known time zone; write one like"
            " Europe/Zurich"
        )
    if len(values.get("name") or "") > CRON_NAME_LIMIT:
        path.at("name").problem(
            "is too long for a job with schedule, because a run's name ends in its minute; use at"
            f" most {CRON_NAME_LIMIT} characters"
        )


def _check_array(values: _Values, roles: dict[str, _Values], path: FieldPath) -> None:
    array = values.get("array")
    if array is None:
        return
    if values.get("group"):
        path.at("group").problem(
            "cannot be combined with array, whose elements start one by one; remove one of them"
        )
    total = sum(role.get("replicas", 0) for role in roles.values())
    if total * len(array.elements) > ARRAY_TASK_LIMIT:
        path.at("array").problem(
            f"has {len(array.elements)} elements of {total} tasks; an array has at most"
            f" {ARRAY_TASK_LIMIT} tasks: split it into several arrays"
        )
    names_of_values = array.values(array.elements[0])
    for name, role in roles.items():
        here = path.at("roles").at(name)
        command = role.get("command", ())
        words = [command] if isinstance(command, str) else [*command, *role.get("args", ())]
        for word in words:
            _check_placeholders(word, names_of_values, here.at("command"))
        for variable, value in role.get("env", {}).items():
            _check_placeholders(value, names_of_values, here.at("env").at(variable))


def _check_placeholders(template: str, known: Mapping[str, str], path: FieldPath) -> None:
    for written, meant in near_misses(template, known):
        path.problem(
            f"has {written}; did you mean {{{meant}}}? Write {{{written}}} to keep the text"
            f" {written}"
        )
