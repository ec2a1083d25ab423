"""References to secrets in the variables and files of a role: `${resources.NAME.KEY}`.

A reference stays a reference in the specification of a job; the server replaces it only in what it
sends to a worker. `$${resources.NAME.KEY}` is replaced by the text `${resources.NAME.KEY}`. Any
other `${…}` stays as it is.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

SECRET_REFERENCE = re.compile(
    r"(?P<escape>\$)?\$\{resources\.(?P<name>[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"
    r"\.(?P<key>[A-Za-z0-9._-]{1,253})\}"
)
_BEGINNING = "${resources."


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
        if not match["escape"]
    ]


def referenced_secrets(values: Iterable[str]) -> tuple[SecretKey, ...]:
    """The keys that any of the values refers to, each once, in order."""
    return tuple(dict.fromkeys(key for value in values for key in secrets_in(value)))


def without_secrets(value: str) -> str:
    """The text that `with_secrets` turns back into this value."""
    return (
        SECRET_REFERENCE.sub(lambda match: "$" + match[0], value) if _BEGINNING in value else value
    )


def with_secrets(value: str, known: Callable[[SecretKey], str]) -> str:
    """The value with every reference replaced by what `known` returns for it."""

    def one(match: re.Match[str]) -> str:
        if match["escape"]:
            return match[0][1:]
        return known(SecretKey(match["name"], match["key"]))

    return SECRET_REFERENCE.sub(one, value) if _BEGINNING in value else value
