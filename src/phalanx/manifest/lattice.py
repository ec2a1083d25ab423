"""LatticeJob: tasks with workloads of containers, and an optional schedule."""

import re
from typing import NamedTuple

from phalanx.core.spec.fields import items, text
from phalanx.core.spec.references import literal
from phalanx.core.spec.secret_references import secrets_in
from phalanx.manifest.container import (
    put_program,
    put_resources,
    put_security,
    report_extra_container,
)
from phalanx.manifest.draft import JobDraft, LocatedValue, RoleDraft
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.problems import ProblemList
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

VERSIONS = ("lattice.dev/v1alpha1", "v1alpha1")

_RESTARTS = {"OnFailure": "gang", "Never": "never"}
_CONCURRENCY = {"Allow": "allow", "Forbid": "forbid", "Replace": "replace"}
_DIRECTIONS = {each: each for each in ("inbound", "outbound", "both")}
_SECRET = re.compile(r"\$\{resources\.(?P<name>[^.}]+)\.(?P<key>[^}]+)\}")

#: Key of a schedule → field of the native form.
_SCHEDULE = {
    "schedule": "cron",
    "timeZone": "timezone",
    "concurrencyPolicy": "concurrency",
    "successfulJobsHistoryLimit": "done",
    "failedJobsHistoryLimit": "failed",
}


class _Defaults(NamedTuple):
    restart: LocatedValue | None
    variables: dict[str, LocatedValue]
    secrets: dict[str, list[str]]  #: declared secrets, each with its keys
    pull_secrets: LocatedValue | None


def draft_of(document: StrictMapping, options: ReadOptions) -> JobDraft:
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    draft = JobDraft(document.location)
    metadata.name_job(draft)
    draft.put("queue", spec.read("queue", text), spec.location.at("queue"))
    priority_class = spec.read("priorityClassName", text)
    draft.put("priority_class", priority_class, spec.location.at("priorityClassName"))
    _put_schedule(draft, spec)
    minimum = spec.read("minAvailable", whole(1))
    defaults = _defaults(draft, spec)
    tasks = spec.mappings_by_name("tasks")
    if not tasks:
        spec.problem("is missing; write a mapping of names to tasks", "tasks")
    restarts = []
    for name, task in tasks.items():
        restart = _restart(task) or defaults.restart
        restarts += [] if restart is None else [restart]
        draft.roles[name] = _role(draft, task, defaults, options)
    for first in restarts[:1]:
        draft.put("restart", first.value, first.location)
        for other in restarts[1:]:
            if other.value != first.value:
                spec.problems.add_unsupported(
                    other.location,
                    f"differs from {first.location}, but a job has one restart policy",
                )
    if minimum is not None and minimum > draft.size:
        spec.problem(
            f"is {minimum} but the tasks have {draft.size} replicas in total; lower it",
            "minAvailable",
        )
    elif minimum is not None:
        draft.put_minimum(minimum, spec.location.at("minAvailable"))
    return draft


def _defaults(draft: JobDraft, spec: StrictMapping) -> _Defaults:
    mapping = spec.mapping("defaults")
    secrets = _resources(draft, spec) | _resources(draft, mapping)
    runtime = mapping.mapping("entryRuntime")
    pull = runtime.read("imagePullSecrets", lambda value: items(value, "a list of secrets"))
    located = None
    if pull is not None:
        located = LocatedValue(pull, runtime.location.at("imagePullSecrets"))
    return _Defaults(_restart(mapping), _variables(mapping.mapping("variables")), secrets, located)


def _restart(mapping: StrictMapping) -> LocatedValue | None:
    policy = mapping.read("restartPolicy", choice(_RESTARTS))
    return None if policy is None else LocatedValue(policy, mapping.location.at("restartPolicy"))


def _role(
    draft: JobDraft, task: StrictMapping, defaults: _Defaults, options: ReadOptions
) -> RoleDraft:
    role = RoleDraft(task.location)
    role.put("replicas", task.read("replicas", whole(1)), task.location.at("replicas"))
    workload = task.mapping("workload")
    secrets = defaults.secrets | _resources(draft, task) | _resources(draft, workload)
    containers = list(workload.mappings_by_name("containers").values())
    if not containers:
        workload.problem("is missing; write a mapping of names to containers", "containers")
    for container in containers[:1]:
        put_program(role, container, options)
        if defaults.pull_secrets is not None and "image" in role.fields:
            role.put("pull_secrets", *defaults.pull_secrets)
        put_resources(role, container.mapping("resources"))
        variables = defaults.variables | _variables(container.mapping("variables"))
        _put_variables(role, variables, secrets, task.problems)
        put_security(role, container.mapping("security"), options)
    for extra in containers[1:]:
        report_extra_container(extra)
    return role


def _resources(draft: JobDraft, mapping: StrictMapping) -> dict[str, list[str]]:
    """The secrets that are declared in a mapping. Its external services become those of the job."""
    secrets = {}
    for name, resource in mapping.mappings_by_name("resources").items():
        kind = resource.read("type", text)
        if kind == "secret":
            params = resource.mapping("params")
            keys = params.read("keys", lambda value: items(value, "a list of keys")) or []
            secrets[name] = [str(key) for key in keys]
        elif kind == "external-service":
            _put_services(draft, name, resource)
            resource.problems.add_note(
                resource.location,
                "is declared, not enforced: tasks use the network of their worker",
            )
        else:
            resource.ignore(*resource.unread())
            resource.problems.add_unsupported(
                resource.location, f"is of type {kind}, which is not supported"
            )
    return secrets


def _put_services(draft: JobDraft, name: str, resource: StrictMapping) -> None:
    direction = resource.read("direction", choice(_DIRECTIONS))
    endpoints = resource.mapping("params").mapping("endpoints")
    for key in endpoints.unread():
        url, location = endpoints.take(key), endpoints.location.at(key)
        if direction != "inbound":
            draft.put_in("external_services", f"{name}.{key}", url, location)


def _variables(mapping: StrictMapping) -> dict[str, LocatedValue]:
    return {
        name: LocatedValue(mapping.take(name), mapping.location.at(name))
        for name in mapping.unread()
    }


def _put_variables(
    role: RoleDraft,
    variables: dict[str, LocatedValue],
    secrets: dict[str, list[str]],
    problems: ProblemList,
) -> None:
    for name, (value, location) in variables.items():
        for match in _SECRET.finditer(value if isinstance(value, str) else ""):
            if match["key"] not in secrets.get(match["name"], []):
                problems.add(
                    location, f"refers to {match[0]}, which is not declared; add it to resources"
                )
            elif not secrets_in(match[0]):
                problems.add(
                    location,
                    f"refers to {match[0]}, which is not the name of a secret; use lower-case"
                    " letters, digits and '-'",
                )
        role.put_in("env", name, literal(value) if isinstance(value, str) else value, location)


def _put_schedule(draft: JobDraft, spec: StrictMapping) -> None:
    policy = spec.read("concurrencyPolicy", choice(_CONCURRENCY))
    given = {"concurrencyPolicy": policy} | {
        key: spec.take(key) for key in _SCHEDULE if key in spec
    }
    values = {key: value for key, value in given.items() if value is not None}
    if "schedule" not in values:
        for key in values:
            spec.problem("has no effect without a schedule; remove it, or add schedule", key)
        return
    schedule: dict[str, object] = {}
    keep: dict[str, object] = {}
    for key, value in values.items():
        field = _SCHEDULE[key]
        path = f"schedule.keep.{field}" if field in ("done", "failed") else f"schedule.{field}"
        draft.locate(path, spec.location.at(key))
        (keep if field in ("done", "failed") else schedule)[field] = value
    draft.put("schedule", schedule | ({"keep": keep} if keep else {}), spec.location.at("schedule"))
