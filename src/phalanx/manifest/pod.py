"""A pod, or the template of one: the role that its tasks have, and what it says about the job.

One container is a task. Sidecars, init containers, volumes and security settings are unsupported.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from phalanx.core.spec.fields import integer, items, text
from phalanx.core.spec.references import literal
from phalanx.manifest.draft import RoleDraft, Said
from phalanx.manifest.metadata import Metadata, metadata_of
from phalanx.manifest.problems import ProblemList, ReadOptions, SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole, word

#: Names that others use for our resources.
RESOURCES = {"nvidia.com/gpu": "gpu"}

_POLICIES = {"PreemptLowerPriority": "lower", "Never": "never"}
_RESTARTS = {name: name for name in ("Always", "OnFailure", "Never")}

#: They change nothing for a process on a worker: it has the network of its worker, no taints keep
#: it away, and its ports are its own.
_POD_SKIPPED = (
    *("schedulerName", "tolerations", "hostNetwork", "dnsPolicy", "enableServiceLinks"),
    *("automountServiceAccountToken", "terminationMessagePath"),
)
_CONTAINER_SKIPPED = (
    *("name", "ports", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"),
    *("stdin", "tty"),
)
_NOT_ITS_CONTAINER = "is one container too many: a task is one process"
_EXPANSION = re.compile(r"\$(?:\$|\((?P<name>[^)]*)\))")


class _Scope(NamedTuple):
    """What `$(NAME)` may stand for in a container."""

    known: dict[str, str]  #: its own variables
    late: dict[str, str]  #: those known at the start, with the references that they become

    def is_late(self, name: str | None) -> bool:
        return name in self.late and name not in self.known


class Pod(NamedTuple):
    metadata: Metadata
    role: RoleDraft
    #: Fields of the job that the pod sets: `priority`, `priority_class`, `preemption_policy`, …
    job: dict[str, Said]
    restart: Said | None  #: its restartPolicy, if it names one


def pod_of(
    document: StrictMapping, settings: ReadOptions, late: Mapping[str, str] | None = None
) -> Pod:
    """`late` are variables that are known at the start, each with the reference that it becomes."""
    metadata = metadata_of(document, needs_name=False)
    spec = document.view("spec")
    spec.skip(*_POD_SKIPPED)
    role = RoleDraft(spec.where)
    containers = spec.views("containers")
    if not containers:
        spec.wrong("is missing; a pod has a container that runs something", "containers")
    for container in containers[:1]:
        fill(role, container, settings, late or {})
    for extra in containers[1:]:
        drop(extra)
    spec.unsupported(("initContainers", "ephemeralContainers"), _NOT_ITS_CONTAINER)
    for label in (selector := spec.view("nodeSelector")).rest():
        role.put_in("node_selector", label, selector.take(label), selector.where.at(label))
    restart = spec.where.at("restartPolicy")
    policy = spec.read("restartPolicy", choice(_RESTARTS))
    return Pod(metadata, role, _job_fields(spec), None if policy is None else Said(policy, restart))


def _job_fields(spec: StrictMapping) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for key, field, value in (
        ("priority", "priority", spec.read("priority", integer(-(2**31), 2**31 - 1))),
        ("priorityClassName", "priority_class", spec.read("priorityClassName", text)),
        ("preemptionPolicy", "preemption_policy", spec.read("preemptionPolicy", choice(_POLICIES))),
        ("terminationGracePeriodSeconds", "grace", _grace(spec)),
        ("activeDeadlineSeconds", "time_limit", spec.read("activeDeadlineSeconds", whole(1))),
    ):
        if value is not None:
            found[field] = Said(value, spec.where.at(key))
    # Kubernetes writes the number of a class beside its name.
    if "priority_class" in found:
        found.pop("priority", None)
    return found


def _grace(spec: StrictMapping) -> int | None:
    return spec.read("terminationGracePeriodSeconds", whole(0))


def drop(container: StrictMapping) -> None:
    container.findings.unsupported(container.where, _NOT_ITS_CONTAINER)
    container.skip(*container.rest())


def fill(
    role: RoleDraft, container: StrictMapping, settings: ReadOptions, late: Mapping[str, str]
) -> None:
    """What a container runs, with which variables, where, and with what resources."""
    container.skip(*_CONTAINER_SKIPPED)
    scope = _Scope({}, dict(late))
    for entry in container.views("env"):
        _put_variable(role, entry, scope)
    put_program(role, container, settings, scope)
    role.put("workdir", container.take("workingDir"), container.where.at("workingDir"))
    put_resources(role, container.view("resources"))


def _put_variable(role: RoleDraft, entry: StrictMapping, scope: _Scope) -> None:
    name = entry.required("name", word, "a variable has a name")
    if entry.take("valueFrom") is not None:
        entry.findings.unsupported(
            entry.where.at("valueFrom"), "is a value from elsewhere, which is not supported"
        )
        return
    given = entry.take("value")
    value: object = "" if given is None else given
    if name is not None and isinstance(value, str):
        is_late = any(scope.is_late(match["name"]) for match in _EXPANSION.finditer(value))
        plain, value = expanded(value, scope.known), _with_references(value, scope)
        if is_late:
            scope.late[name] = value
        else:
            scope.known[name] = plain
    if name is not None:
        role.put_in("env", name, value, entry.where.at("value"))


def _with_references(value: str, scope: _Scope) -> str:
    """A value whose references to late variables become ours; the rest means itself."""
    parts, start = [], 0
    for match in _EXPANSION.finditer(value):
        if scope.is_late(match["name"]):
            parts.append(literal(expanded(value[start : match.start()], scope.known)))
            parts.append(scope.late[match["name"]])
            start = match.end()
    return "".join([*parts, literal(expanded(value[start:], scope.known))])


def expanded(value: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it: an unknown name stays, `$$` is a dollar."""
    return _EXPANSION.sub(
        lambda match: known.get(match["name"], match[0]) if match["name"] is not None else "$",
        value,
    )


def put_program(
    role: RoleDraft, container: StrictMapping, settings: ReadOptions, scope: _Scope | None = None
) -> None:
    scope = scope or _Scope({}, {})
    words: dict[str, list[object]] = {}
    for key in ("command", "args"):
        found = container.read(key, lambda value: items(value, "a list of strings")) or []
        words[key] = [
            _word(one, scope, container.where.at(key, n), container.findings)
            for n, one in enumerate(found)
        ]
    image = container.read("image", text)
    if image is not None and not settings.ignore_image:
        role.put("image", image, container.where.at("image"))
        _put_words(role, "command" if words["command"] else "args", container, words)
        return
    if not any(words.values()):
        cure = "" if image is None else ": the image's own program cannot be run bare"
        container.wrong(f"is missing; write what to run{cure}", "command")
        role.put("command", "true", container.where)  # the core need not say it again
    elif image is not None and not words["command"]:
        container.findings.read_as(
            container.where.at("args"),
            "is run as the command: what the image would have run with it is not known",
        )
    _put_words(role, "command", container, words)


def _word(value: object, scope: _Scope, where: SourceLocation, findings: ProblemList) -> object:
    if not isinstance(value, str):
        return value
    for match in _EXPANSION.finditer(value):
        if scope.is_late(match["name"]):
            findings.wrong(
                where,
                f"has $({match['name']}), which is known at the start only; let a shell or the"
                " program read the variable",
            )
    return expanded(value, scope.known)


def _put_words(
    role: RoleDraft, field: str, container: StrictMapping, words: Mapping[str, list[object]]
) -> None:
    if not any(words.values()):
        return
    role.put(field, [*words["command"], *words["args"]], container.where)
    places = [container.where.at(key, n) for key, found in words.items() for n in range(len(found))]
    role.origins |= {f"{field}[{n}]": place for n, place in enumerate(places)}


def renamed(amounts: object) -> object:
    """Resources by our names; anything else as it is."""
    if not isinstance(amounts, Mapping):
        return amounts
    return {RESOURCES.get(name, name): amount for name, amount in amounts.items()}


def put_resources(role: RoleDraft, resources: StrictMapping) -> None:
    """Requests; a limit stands in for a request that is absent."""
    for part in ("limits", "requests"):
        asked = resources.view(part)
        for name in asked.rest():
            key = RESOURCES.get(name, name)
            role.put_in("resources", key, asked.take(name), asked.where.at(name))
