"""References to secrets in the variables and files of a role: `${resources.NAME.KEY}`.

A reference stays a reference in the specification of a job; the server replaces it only in what it
sends to a worker. `$${resources` is replaced by the text `${resources`. Any other `${…}` stays as
it is, and what begins like a reference and is none is refused.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

_BEGINNING = "${resources"
_BEGIN = r"\$\{resources(?!\w)"
SECRET_REFERENCE = re.compile(
    rf"\$(?P<escaped>{_BEGIN})"
    r"|\$\{resources\.(?P<name>[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"
    r"\.(?P<key>[A-Za-z0-9._-]{1,253})\}"
    rf"|(?P<malformed>{_BEGIN}[^{{}}\n]{{0,80}}\}}?)"
)


class SecretKey(NamedTuple):
    """A key of a secret of the job's namespace."""

    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.name}.{self.key}"


def secrets_in(value: str) -> list[SecretKey]:
    """The keys that a value refers to."""
    if _BEGINNING not in value:
        return []
    return [
        SecretKey(match["name"], match["key"])
        for match in SECRET_REFERENCE.finditer(value)
        if match["name"]
    ]


def malformed_reference(value: str) -> str | None:
    """A text in the value that begins like a reference and is none."""
    matches = SECRET_REFERENCE.finditer(value) if _BEGINNING in value else ()
    return next((match["malformed"] for match in matches if match["malformed"]), None)


def referenced_secrets(values: Iterable[str]) -> tuple[SecretKey, ...]:
    """The keys that any of the values refers to, each once, in order."""
    return tuple(dict.fromkeys(key for value in values for key in secrets_in(value)))


def without_secrets(value: str) -> str:
    """The text that `with_secrets` turns back into this value."""
    return re.sub(_BEGIN, r"$\g<0>", value)


def with_secrets(value: str, known: Callable[[SecretKey], str]) -> str:
    """The value with every reference replaced by what `known` returns for it."""

    def one(match: re.Match[str]) -> str:
        if match["name"]:
            return known(SecretKey(match["name"], match["key"]))
        return match["escaped"] or match[0]

    return SECRET_REFERENCE.sub(one, value) if _BEGINNING in value else value
