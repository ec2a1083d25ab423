"""Valid names of jobs, roles, queues, workers, resources, variables and node labels."""

import re

from phalanx.core.errors import Invalid
from phalanx.core.spec.fields import Reader, refusal, shown, text

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
#: The index of an element behind the name of its array.
_ELEMENT = re.compile(r"\[(0|[1-9][0-9]{0,8})\]$")
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")
_WORKER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_TIMEZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")

NAME_LIMIT = 253
#: A subdomain, a slash and a label: the longest name of a label or resource in Kubernetes.
QUALIFIED_LIMIT = NAME_LIMIT + 1 + 63


def _matching(pattern: re.Pattern[str], limit: int, cure: str) -> Reader[str]:
    def read(value: object) -> str:
        name = text(value)
        if len(name) > limit:
            raise refusal(f"is {shown(name)} and has {len(name)} characters; use at most {limit}")
        if not pattern.fullmatch(name):
            raise refusal(f"is {shown(name)}; {cure}")
        return name

    return read


_ENDS = "begin and end with a letter or a digit"
_LOWER_CASE = f"use lower-case letters, digits and '-', and {_ENDS}"
_MIXED_CASE = f"use letters, digits, '-', '_', '.' and '/', and {_ENDS}"

dns_label = _matching(_DNS_LABEL, 63, _LOWER_CASE)
dns_subdomain = _matching(
    _DNS_SUBDOMAIN, NAME_LIMIT, f"{_LOWER_CASE}; join parts of at most 63 characters with '.'"
)
namespace_pattern = _matching(
    re.compile(r"[a-z0-9*](?:[a-z0-9*-]*[a-z0-9*])?"),
    63,
    "write the name of a namespace, or a pattern with '*', like team-*",
)
worker_id = _matching(_WORKER, NAME_LIMIT, f"use letters, digits, '.', '-' and '_', and {_ENDS}")
timezone = _matching(_TIMEZONE, 64, "write the name of a time zone, like UTC or Europe/Zurich")
file_name = _matching(
    re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*"),
    255,
    "write a file name without folders, of letters, digits, '.', '-' and '_'",
)
secret_key = _matching(
    re.compile(r"[A-Za-z0-9._-]+"), NAME_LIMIT, "use letters, digits, '.', '-' and '_'"
)
label_key = _matching(_QUALIFIED, QUALIFIED_LIMIT, _MIXED_CASE)
_resource = _matching(_QUALIFIED, QUALIFIED_LIMIT, _MIXED_CASE)


def label_value(value: object) -> str:
    """The value of a label: any text of printable characters."""
    label = text(value)
    if not label.isprintable():
        raise refusal(f"is {shown(label)}; remove the characters that cannot be printed")
    return label


user = _matching(re.compile(r"[a-z_][a-z0-9_.-]*"), 32, "write the name of a user, like alice")


def member(value: object) -> str:
    """`namespace/name` of a job."""
    name = text(value)
    try:
        namespace, name_in_it = name.split("/")
        dns_label(namespace)
        dns_subdomain(name_in_it)
    except (ValueError, Invalid):
        raise refusal(
            f"is {shown(name)}; write namespace/name of a job, like default/pretrain"
        ) from None
    return name


def job_reference(value: object) -> str:
    """The id of a job, its name, or `namespace/name`; and `[INDEX]` for an element of an array."""
    reference = text(value)
    job = _ELEMENT.sub("", reference)
    try:
        member(job) if "/" in job else dns_subdomain(job)
    except Invalid:
        raise refusal(
            f"is {shown(reference)}; write the id of a job, like j-7kq2m4xd, its name, or"
            " namespace/name"
        ) from None
    return reference


def resource(value: object) -> str:
    """The name of a resource: `licence`, `vram_mb`, `nvidia.com/gpu`."""
    name = _resource(value)
    if name.count("/") > 1:
        raise refusal(f"is {shown(name)}; use at most one '/'")
    return name


def variable(value: object) -> str:
    """The name of an environment variable."""
    name = text(value)
    if not name or "=" in name:
        raise refusal(f"is {shown(name)}; use a name without '='")
    return name


def absolute_path(value: object) -> str:
    path = text(value)
    if not path.startswith("/"):
        raise refusal(f"is {shown(path)}; write an absolute path, which begins with '/'")
    return path
