"""LatticeJob: tasks with workloads of containers, on a schedule if it has one."""

import re
from typing import NamedTuple

from phalanx.core.spec.fields import items, text
from phalanx.core.spec.references import literal
from phalanx.manifest.draft import Draft, RoleDraft, Said
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import drop, put_program, put_resources
from phalanx.manifest.problems import ProblemList, ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

VERSIONS = ("lattice.dev/v1alpha1", "v1alpha1")

_RESTARTS = {"OnFailure": "gang", "Never": "never"}
_CONCURRENCY = {"Allow": "allow", "Forbid": "forbid", "Replace": "replace"}
_SECRET = re.compile(r"\$\{resources\.(?P<name>[^.}]+)\.(?P<key>[^}]+)\}")

#: A schedule's fields: the key here, the path in the native form.
_SCHEDULE = {
    "schedule": "cron",
    "timeZone": "timezone",
    "concurrencyPolicy": "concurrency",
    "successfulJobsHistoryLimit": "done",
    "failedJobsHistoryLimit": "failed",
}


class _Defaults(NamedTuple):
    restart: Said | None
    variables: dict[str, Said]
    secrets: dict[str, list[str]]  #: declared, each with its keys


def draft_of(document: StrictMapping, settings: ReadOptions) -> Draft:
    metadata = metadata_of(document)
    document.skip("status")
    spec = document.view("spec")
    draft = Draft(document.where)
    metadata.name_job(draft)
    draft.put("queue", spec.read("queue", text), spec.where.at("queue"))
    klass = spec.read("priorityClassName", text)
    draft.put("priority_class", klass, spec.where.at("priorityClassName"))
    _put_schedule(draft, spec)
    least = spec.read("minAvailable", whole(1))
    defaults = _defaults(spec)
    tasks = spec.named("tasks")
    if not tasks:
        spec.wrong("is missing; write a mapping of names to tasks", "tasks")
    restarts = []
    for name, task in tasks.items():
        said = _restart(task) or defaults.restart
        restarts += [said] if said is not None else []
        draft.roles[name] = _role(task, defaults, settings)
    for said in restarts[:1]:
        draft.put("restart", said.value, said.where)
        for other in restarts[1:]:
            if other.value != said.value:
                spec.findings.unsupported(other.where, f"differs from {said.where}; a job has one")
    if least is not None and least > draft.size:
        spec.wrong(f"is {least} and the tasks have {draft.size} replicas; lower it", "minAvailable")
    elif least is not None:
        draft.put_minimum(least, spec.where.at("minAvailable"))
    return draft


def _defaults(spec: StrictMapping) -> _Defaults:
    view = spec.view("defaults")
    secrets = _secrets(spec) | _secrets(view)
    return _Defaults(_restart(view), _variables(view.view("variables")), secrets)


def _restart(view: StrictMapping) -> Said | None:
    policy = view.read("restartPolicy", choice(_RESTARTS))
    return None if policy is None else Said(policy, view.where.at("restartPolicy"))


def _role(task: StrictMapping, defaults: _Defaults, settings: ReadOptions) -> RoleDraft:
    role = RoleDraft(task.where)
    role.put("replicas", task.read("replicas", whole(1)), task.where.at("replicas"))
    workload = task.view("workload")
    secrets = defaults.secrets | _secrets(task) | _secrets(workload)
    containers = list(workload.named("containers").values())
    if not containers:
        workload.wrong("is missing; write a mapping of names to containers", "containers")
    for container in containers[:1]:
        put_program(role, container, settings)
        put_resources(role, container.view("resources"))
        variables = defaults.variables | _variables(container.view("variables"))
        _put_variables(role, variables, secrets, task.findings)
        container.unsupported(["security"], "asks for a protection that workers do not give")
    for extra in containers[1:]:
        drop(extra)
    return role


def _secrets(view: StrictMapping) -> dict[str, list[str]]:
    """The secrets that are declared here. Services are reached as the worker reaches them."""
    found = {}
    for name, resource in view.named("resources").items():
        kind = resource.read("type", text)
        if kind == "secret":
            params = resource.view("params")
            keys = params.read("keys", lambda value: items(value, "a list of keys")) or []
            found[name] = [str(key) for key in keys]
        elif kind == "external-service":
            resource.skip("direction", "params")
            resource.findings.read_as(resource.where, "is declared, and not enforced")
        else:
            resource.skip(*resource.rest())
            resource.findings.unsupported(resource.where, f"is of type {kind}, not supported")
    return found


def _variables(view: StrictMapping) -> dict[str, Said]:
    return {name: Said(view.take(name), view.where.at(name)) for name in view.rest()}


def _put_variables(
    role: RoleDraft,
    variables: dict[str, Said],
    secrets: dict[str, list[str]],
    findings: ProblemList,
) -> None:
    for name, (value, where) in variables.items():
        for match in _SECRET.finditer(value if isinstance(value, str) else ""):
            if match["key"] not in secrets.get(match["name"], []):
                findings.wrong(where, f"refers to {match[0]}, which resources do not declare")
            else:
                findings.unsupported(
                    where, f"refers to the secret {match['name']}, and none is looked up yet"
                )
        role.put_in("env", name, literal(value) if isinstance(value, str) else value, where)


def _put_schedule(draft: Draft, spec: StrictMapping) -> None:
    policy = spec.read("concurrencyPolicy", choice(_CONCURRENCY))
    given = {"concurrencyPolicy": policy} | {
        key: spec.take(key) for key in _SCHEDULE if key in spec
    }
    found = {key: value for key, value in given.items() if value is not None}
    if "schedule" not in found:
        for key in found:
            spec.wrong("is for a job with a schedule, and there is none; remove it", key)
        return
    schedule: dict[str, object] = {}
    keep: dict[str, object] = {}
    for key, value in found.items():
        field = _SCHEDULE[key]
        path = f"schedule.keep.{field}" if field in ("done", "failed") else f"schedule.{field}"
        draft.locate(path, spec.where.at(key))
        (keep if field in ("done", "failed") else schedule)[field] = value
    draft.put("schedule", schedule | ({"keep": keep} if keep else {}), spec.where.at("schedule"))
