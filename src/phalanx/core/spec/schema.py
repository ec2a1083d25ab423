"""The fields of the native form, each with its default, its reader and its writer.

`docs/reference/job.md` explains them to users, in the same order. Rules between fields are in
`validation`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from phalanx.core.model import PreemptWithin, ReclaimFrom
from phalanx.core.spec import cron_expression, durations, names, quantities
from phalanx.core.spec.arrays import array, written_array
from phalanx.core.spec.endpoints import endpoint
from phalanx.core.spec.fields import (
    REQUIRED,
    Field,
    FieldPath,
    Reader,
    boolean,
    distinct,
    integer,
    items,
    mapping,
    one_of,
    read_table,
    refusal,
    shown,
    text,
    texts,
    write_fields,
)
from phalanx.core.spec.job import (
    CheckpointPolicy,
    Concurrency,
    Match,
    Mode,
    Pack,
    PackMode,
    PartialCompletion,
    PreemptionPolicy,
    Restart,
    Schedule,
)
from phalanx.core.spec.security import security, written_security
from phalanx.core.spec.watch import watch, written_watch
from phalanx.core.time_units import HOUR, MINUTE, Micros

#: Tasks of all roles of a job together.
TASK_LIMIT = 10_000
ROLE_LIMIT = 1000
SELECTOR_LIMIT = 100
GROUP_LIMIT = 100

#: Linux does not start a process that has a longer argument or variable.
ARGUMENT_LIMIT_BYTES = 128 * 1024 - 1

IMAGE_LIMIT_CHARS = 1024
#: Files of secrets that a task has.
FILE_LIMIT = 100

GRACE_LIMIT: Micros = HOUR
BACKOFF_LIMIT: Micros = 5 * MINUTE


def _argument(value: object) -> str:
    word = text(value)
    size_bytes = len(word.encode())
    if size_bytes > ARGUMENT_LIMIT_BYTES:
        raise refusal(
            f"has {size_bytes} bytes; an argument or a variable has at most"
            f" {ARGUMENT_LIMIT_BYTES}: put the text in a file"
        )
    return word


def _command(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise refusal("is empty; write the command to run")
        return _argument(value)
    words = _arguments("a string for sh, or a list of strings to execute")(value)
    if not words or not words[0]:
        raise refusal("has no program; write the command to run")
    return words


def _arguments(what: str) -> Reader[tuple[str, ...]]:
    def read(value: object) -> tuple[str, ...]:
        path = FieldPath()
        result = []
        for index, word in enumerate(items(value, what)):
            with path.at(index):
                result.append(_argument(word))
        path.raise_problems()
        return tuple(result)

    return read


#: `[registry/]repository[:tag][@digest]`, as Docker reads it.
_IMAGE = re.compile(
    r"([a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?/)?"
    r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?(@sha256:[0-9a-f]+)?"
)
#: Other places than a registry from which a container runtime would read an image.
_TRANSPORT = re.compile(r"(containers-storage|dir|docker|oci|sif|tarball)(-archive|-daemon)?:")


def image(value: object) -> str:
    name = text(value)
    if len(name) > IMAGE_LIMIT_CHARS or not _IMAGE.fullmatch(name) or _TRANSPORT.match(name):
        raise refusal(
            f"is {shown(name)}; write the name of an image, like registry.example/train@sha256:…"
        )
    return name


def _at_most(limit: Micros) -> Reader[Micros]:
    def read(value: object) -> Micros:
        micros = durations.duration(value)
        if micros > limit:
            raise refusal(f"is {shown(value)}; it must be at most {durations.printed(limit)}")
        return micros

    return read


def _above_zero(value: object) -> Micros:
    micros = durations.duration(value)
    if micros == 0:
        raise refusal(f"is {shown(value)}; write a duration longer than 0, or null for no limit")
    return micros


def _max_retries(value: object) -> int:
    # Other schedulers write 0 where the first failure ends the job; here that is 1.
    return max(1, integer(0, 1000)(value))


def _cron(value: object) -> str:
    cron_expression.parse(value)
    return " ".join(text(value).split())


class _Keep(NamedTuple):
    done: int
    failed: int


_PACK_FIELDS = {
    "by": Field(names.label_key, REQUIRED),
    "mode": Field(one_of(PackMode), "require", str),
}

_KEEP_FIELDS = {
    "done": Field(integer(0, 1000), 3),
    "failed": Field(integer(0, 1000), 1),
}


def _pack(value: object) -> Pack:
    return Pack(**read_table(value, "a mapping, like {by: rack, mode: require}", _PACK_FIELDS))


def _keep(value: object) -> _Keep:
    return _Keep(**read_table(value, "a mapping, like {done: 3, failed: 1}", _KEEP_FIELDS))


_SCHEDULE_FIELDS = {
    "cron": Field(_cron, REQUIRED),
    "timezone": Field(names.timezone, "UTC"),
    "concurrency": Field(one_of(Concurrency), "forbid", str),
}


def _schedule(value: object) -> Schedule:
    what = 'a mapping, like {cron: "0 2 * * *", timezone: UTC}'
    values = read_table(value, what, _SCHEDULE_FIELDS | {"keep": Field(_keep, {})})
    kept: _Keep = values.pop("keep")
    return Schedule(**values, keep_done=kept.done, keep_failed=kept.failed)


def _written_schedule(schedule: Schedule) -> dict[str, object]:
    keep = write_fields(_Keep(schedule.keep_done, schedule.keep_failed), _KEEP_FIELDS)
    return write_fields(schedule, _SCHEDULE_FIELDS) | ({"keep": keep} if keep else {})


def _written_command(command: str | tuple[str, ...]) -> str | list[str] | None:
    return command if isinstance(command, str) else list(command) or None


def _roles(value: object) -> Mapping[Any, object]:
    """The roles as they are; `validation` reads them, because defaults depend on the job."""
    roles = mapping(value, "a mapping of names to roles, like {worker: {command: ./train}}")
    if not roles:
        raise refusal("is empty; write at least one role")
    if len(roles) > ROLE_LIMIT:
        raise refusal(
            f"has {len(roles)} roles; a job has at most {ROLE_LIMIT}: write equal roles as one role"
            " with replicas"
        )
    return roles


ROLE_FIELDS = {
    "replicas": Field(integer(1, TASK_LIMIT), 1),
    "min": Field(integer(0, TASK_LIMIT)),
    "command": Field(_command, None, _written_command),
    "env": Field(texts("a mapping of names to strings", names.variable, _argument), {}, dict),
    "workdir": Field(names.absolute_path),
    "resources": Field(quantities.resources, {}, quantities.native),
    "node_selector": Field(
        texts("a mapping of labels to values", names.label_key, names.label_value, SELECTOR_LIMIT),
        {},
        dict,
    ),
    "per_node": Field(integer(1, TASK_LIMIT)),
    "image": Field(image),
    "args": Field(_arguments("a list of strings"), [], list),
    "pull_secrets": Field(
        distinct("a list of names of secrets", names.dns_label, FILE_LIMIT), [], list
    ),
    "secret_files": Field(
        texts(
            "a mapping of file names to texts, like {token: '${resources.hub.token}'}",
            names.file_name,
            _argument,
            FILE_LIMIT,
        ),
        {},
        dict,
    ),
    "security": Field(security, None, written_security),
}

_PRIORITY = Field(integer(-(2**31), 2**31 - 1), 0)
_JOBS = Field(distinct("a list of ids or names of jobs", names.job_reference), [], list)

JOB_FIELDS = {
    "name": Field(names.dns_subdomain),
    "namespace": Field(names.dns_label, "default"),
    "queue": Field(names.dns_subdomain, "default"),
    "priority": _PRIORITY,
    "priority_class": Field(text),
    "roles": Field(_roles, REQUIRED),
    "min_available": Field(integer(1, TASK_LIMIT)),
    "min_resources": Field(quantities.resources, {}, quantities.native),
    "max_running": Field(integer(1, TASK_LIMIT)),
    "mode": Field(one_of(Mode), "strict", str),
    "match": Field(one_of(Match), "only-waiting", str),
    "group": Field(distinct("a list of namespace/name", names.member, GROUP_LIMIT), [], list),
    "schedule_timeout": Field(_above_zero, None, durations.printed),
    "gather_timeout": Field(_above_zero, None, durations.printed),
    "pack": Field(_pack, None, lambda pack: write_fields(pack, _PACK_FIELDS)),
    "spread": Field(boolean, default=False),
    "restart": Field(one_of(Restart), "gang", str),
    "on_partial_completion": Field(one_of(PartialCompletion), None, str),
    "max_retries": Field(_max_retries, 3),
    "backoff": Field(_at_most(BACKOFF_LIMIT), "10s", durations.printed),
    "grace": Field(_at_most(GRACE_LIMIT), "15s", durations.printed),
    "time_limit": Field(_above_zero, None, durations.printed),
    "stall_after": Field(_above_zero, None, durations.printed),
    "watch": Field(watch, {}, written_watch),
    "complete_when": Field(text, "all"),
    "preemptible": Field(boolean, default=True),
    "preemption_policy": Field(one_of(PreemptionPolicy), "lower", str),
    "checkpoint": Field(one_of(CheckpointPolicy), "none", str),
    "run_as_user": Field(names.user),
    "fence": Field(boolean, default=False),
    "external_services": Field(
        texts(
            "a mapping of names to URLs, like {s3: https://s3.example.com}",
            names.dns_subdomain,
            endpoint,
        ),
        {},
        dict,
    ),
    "after": _JOBS,
    "afterany": _JOBS,
    "afternotok": _JOBS,
    "schedule": Field(_schedule, None, _written_schedule),
    "array": Field(array, None, written_array),
}

#: The fields of a queue, without its name.
QUEUE_FIELDS = {
    "parent": Field(names.dns_subdomain),
    "weight": Field(integer(0, 1_000_000), 1),
    "quota": Field(quantities.allowance, {}, quantities.native),
    "limit": Field(quantities.allowance, {}, quantities.native),
    "stopped": Field(boolean, default=False),
    "priority": Field(integer(-1_000_000_000, 1_000_000_000), 0),
    "preempt_within_queue": Field(one_of(PreemptWithin), "lower_priority", str),
    "reclaim_from_siblings": Field(one_of(ReclaimFrom), "any", str),
    "reclaimable": Field(boolean, default=True),
    "non_preemptible_within_quota": Field(boolean, default=False),
    "consolidation": Field(boolean, default=False),
    "max_priority": Field(integer(-1_000_000_000, 1_000_000_000)),
    "namespaces": Field(
        distinct("a list of namespaces, like [ml, team-*]", names.namespace_pattern), [], list
    ),
}

#: The fields of the short form, which has one role named `worker`.
SHORT_FIELDS = {
    "command": Field(_command, REQUIRED),
    "gang_size": Field(integer(0, TASK_LIMIT), 1),
    "resources": ROLE_FIELDS["resources"],
    "priority": _PRIORITY,
    "queue_name": JOB_FIELDS["queue"],
    "depends_on": _JOBS,
    "namespace": JOB_FIELDS["namespace"],
}
