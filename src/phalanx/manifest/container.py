"""A container of a pod: its command, variables, working directory, image and resources.

`$(NAME)` is expanded as Kubernetes does, except for variables whose value is known only when the
gang starts: they become references of the native form.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from phalanx.core.spec.fields import items, text
from phalanx.core.spec.references import literal
from phalanx.core.spec.secret_references import SecretKey, secrets_in, without_secrets
from phalanx.manifest.draft import RoleDraft
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, word

#: Names of resources in Kubernetes → names of the same resources here.
_RESOURCE_NAMES = {"nvidia.com/gpu": "gpu"}

#: They change nothing for a process on a worker.
_IGNORED = (
    *("name", "ports", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"),
    *("stdin", "tty"),
)
ONE_CONTAINER = "is not supported: a task runs one container"
_EXPANSION = re.compile(r"\$(?:\$|\((?P<name>[^)]*)\))")


class _Variables(NamedTuple):
    """What `$(NAME)` stands for in a container."""

    values: dict[str, str]  #: variables whose value is known
    references: dict[str, str]  #: variables that are known at the start → their reference

    def is_reference(self, name: str | None) -> bool:
        return name in self.references and name not in self.values


def report_extra_container(container: StrictMapping) -> None:
    container.problems.add_unsupported(container.location, ONE_CONTAINER)
    container.ignore(*container.unread())


def put_container(
    role: RoleDraft,
    container: StrictMapping,
    options: ReadOptions,
    references: Mapping[str, str],
) -> None:
    """Set the fields of a role that a container determines."""
    container.ignore(*_IGNORED)
    variables = _Variables({}, dict(references))
    for entry in container.mappings("env"):
        _put_variable(role, entry, variables)
    put_program(role, container, options, variables)
    role.put("workdir", container.take("workingDir"), container.location.at("workingDir"))
    put_resources(role, container.mapping("resources"))
    put_security(role, container.mapping("securityContext"), options)


# Variables


def _put_variable(role: RoleDraft, entry: StrictMapping, variables: _Variables) -> None:
    name = entry.required("name", word, "write the name of the variable")
    if "valueFrom" in entry:
        _put_secret(role, entry, name)
        return
    given = entry.take("value")
    value: object = "" if given is None else given
    if name is not None and isinstance(value, str):
        has_reference = any(variables.is_reference(m["name"]) for m in _EXPANSION.finditer(value))
        plain, value = _expanded(value, variables.values), _with_references(value, variables)
        if has_reference:
            variables.references[name] = value
        else:
            variables.values[name] = plain
    if name is not None:
        role.put_in("env", name, value, entry.location.at("value"))


def _put_secret(role: RoleDraft, entry: StrictMapping, name: str | None) -> None:
    """Set a variable whose value is a key of a secret; other sources are unsupported."""
    source = entry.mapping("valueFrom")
    location = entry.location.at("valueFrom")
    if "secretKeyRef" not in source:
        source.ignore(*source.unread())
        entry.problems.add_unsupported(
            location, "takes the value from elsewhere, which is not supported"
        )
        return
    reference = source.mapping("secretKeyRef")
    secret = reference.required("name", word, "write the name of the secret")
    key = reference.required("key", word, "write a key of the secret")
    if secret is None or key is None:
        return
    text = f"${{resources.{SecretKey(secret, key)}}}"
    if not secrets_in(text):
        entry.problems.add(
            location, f"refers to {secret}, which is not the name of a secret; write a DNS label"
        )
    elif name is not None:
        role.put_in("env", name, text, location)


def _with_references(value: str, variables: _Variables) -> str:
    """The value with references of the native form; all other text is escaped."""
    parts, start = [], 0
    for match in _EXPANSION.finditer(value):
        if variables.is_reference(match["name"]):
            parts.append(_text(value[start : match.start()], variables))
            parts.append(variables.references[match["name"]])
            start = match.end()
    return "".join([*parts, _text(value[start:], variables)])


def _text(value: str, variables: _Variables) -> str:
    """The value as text of the native form, without references."""
    return without_secrets(literal(_expanded(value, variables.values)))


def _expanded(value: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it: an unknown name stays, and `$$` is a dollar sign."""
    return _EXPANSION.sub(
        lambda match: known.get(match["name"], match[0]) if match["name"] is not None else "$",
        value,
    )


# The program


def put_program(
    role: RoleDraft,
    container: StrictMapping,
    options: ReadOptions,
    variables: _Variables | None = None,
) -> None:
    """Set the image, the command and the arguments of a role."""
    variables = variables or _Variables({}, {})
    words: dict[str, list[object]] = {}
    for key in ("command", "args"):
        given = container.read(key, lambda value: items(value, "a list of strings")) or []
        words[key] = [
            _word(each, variables, container.location.at(key, n), container.problems)
            for n, each in enumerate(given)
        ]
    image = container.read("image", text)
    if image is not None and not options.ignore_image:
        role.put("image", image, container.location.at("image"))
        _put_words(role, "command" if words["command"] else "args", container, words)
        return
    if not any(words.values()):
        reason = "" if image is None else ": the program of an ignored image cannot be run"
        container.problem(f"is missing; write the command to run{reason}", "command")
        role.put("command", "true", container.location)  # so that it is reported once
    elif image is not None and not words["command"]:
        container.problems.add_note(
            container.location.at("args"),
            "is run as the command, without the program of the ignored image",
        )
    _put_words(role, "command", container, words)


def _word(
    value: object, variables: _Variables, location: SourceLocation, problems: ProblemList
) -> object:
    if not isinstance(value, str):
        return value
    for match in _EXPANSION.finditer(value):
        if variables.is_reference(match["name"]):
            problems.add(
                location,
                f"has $({match['name']}), which is known only when the job starts; let a shell or"
                " the program read the variable",
            )
    return _expanded(value, variables.values)


def _put_words(
    role: RoleDraft, field: str, container: StrictMapping, words: Mapping[str, list[object]]
) -> None:
    if not any(words.values()):
        return
    role.put(field, [*words["command"], *words["args"]], container.location)
    locations = [
        container.location.at(key, n) for key, each in words.items() for n in range(len(each))
    ]
    role.origins |= {f"{field}[{n}]": location for n, location in enumerate(locations)}


# Security

#: Names of settings in Kubernetes and in LatticeJob → names of the same settings here.
_SECURITY_NAMES = {
    "runAsUser": "run_as_user",
    "capabilities": "capabilities",
    "readOnlyRootFilesystem": "read_only_root",
    "privileged": "privileged",
    "apparmorProfile": "apparmor",
    "appArmorProfile": "apparmor",
}


def put_security(role: RoleDraft, settings: StrictMapping, options: ReadOptions) -> None:
    """Set the security settings of a container; those that have no meaning here are reported."""
    if options.ignore_image:
        settings.unsupported(
            _SECURITY_NAMES, "is for a container, and the image of the container is ignored"
        )
    values: dict[str, object] = {}
    for key, name in _SECURITY_NAMES.items():
        value, location = settings.take(key), settings.location.at(key)
        if value is not None:
            values[name] = _security_value(name, value)
            role.origins[f"security.{name}"] = location
    if values:
        role.put("security", values, settings.location)


def _security_value(name: str, value: object) -> object:
    """The value in the native form; a value that has another form is reported as it is."""
    if name == "capabilities" and isinstance(value, list | tuple):
        return {"add": value}
    if name == "apparmor" and isinstance(value, Mapping):
        value = value.get("localhostProfile", value.get("type"))
    return None if value == "RuntimeDefault" else value


# Resources


def with_native_names(amounts: object) -> object:
    """Amounts by the names that resources have here; anything that is no mapping as it is."""
    if not isinstance(amounts, Mapping):
        return amounts
    return {_RESOURCE_NAMES.get(name, name): amount for name, amount in amounts.items()}


def put_resources(role: RoleDraft, resources: StrictMapping) -> None:
    """Set the requests of a role. A limit counts as a request where there is none."""
    for part in ("limits", "requests"):
        amounts = resources.mapping(part)
        for name in amounts.unread():
            key = _RESOURCE_NAMES.get(name, name)
            role.put_in("resources", key, amounts.take(name), amounts.location.at(name))
