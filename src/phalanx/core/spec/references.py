"""References in the variables of a role, to values that are known only when the gang starts.

They are `$(task.index)`, `$(task.ordinal)`, `$(count.ROLE)`, `$(hosts.ROLE)` and
`$(addresses.ROLE.PORT)`. Any other `$(…)` stays as it is. `$$(task.index)` is replaced by the text
`$(task.index)`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

REFERENCE = re.compile(
    r"(?P<escape>\$)?\$\((?:task\.(?P<own>index|ordinal)"
    r"|(?P<kind>count|hosts)\.(?P<role>[a-z0-9-]+)"
    r"|addresses\.(?P<of>[a-z0-9-]+)\.(?P<port>[0-9]{1,5}))\)"
)


class Reference(NamedTuple):
    kind: str  #: `index`, `ordinal`, `count`, `hosts` or `addresses`
    role: str | None = None
    port: int | None = None  #: of the first task on a host; other tasks there have later ports


def _of(match: re.Match[str]) -> Reference:
    if match["own"]:
        return Reference(match["own"])
    if match["port"]:
        return Reference("addresses", match["of"], int(match["port"]))
    return Reference(match["kind"], match["role"])


def references(value: str) -> Iterator[Reference]:
    """The references in a value."""
    return (_of(match) for match in REFERENCE.finditer(value) if not match["escape"])


def has_ordinal(values: Iterable[str]) -> bool:
    """Whether one of these values has the ordinal of its task."""
    return any(
        reference.kind == "ordinal"
        for value in values
        if "$(task.ordinal)" in value
        for reference in references(value)
    )


def address_ports(values: Iterable[str]) -> dict[str, int]:
    """By role: the lowest port with which these values refer to the addresses of the role."""
    ports: dict[str, int] = {}
    for value in values:
        if "$(addresses." not in value:
            continue
        for reference in references(value):
            role, port = reference.role, reference.port
            if role is not None and port is not None:
                ports[role] = min(port, ports.get(role, port))
    return ports


def resolved(value: str, known: Callable[[Reference], str]) -> str:
    """The value with every reference replaced by what `known` returns for it."""

    def one(match: re.Match[str]) -> str:
        return match[0][1:] if match["escape"] else known(_of(match))

    return REFERENCE.sub(one, value) if "$(" in value else value


def literal(value: str) -> str:
    """The text that `resolved` turns back into this value."""
    return REFERENCE.sub(lambda match: "$" + match[0], value) if "$(" in value else value
