"""What a role's variables may refer to: facts that are only known when the gang starts.

`$(task.index)`, `$(count.ROLE)`, `$(hosts.ROLE)` and `$(addresses.ROLE.PORT)`. Everything else in
brackets is left as it is, and so is one of these with a second `$` before it, which is taken away.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_REFERENCE = re.compile(
    r"(?P<escape>\$)?\$\((?:(?P<index>task\.index)"
    r"|(?P<kind>count|hosts)\.(?P<role>[a-z0-9-]+)"
    r"|addresses\.(?P<of>[a-z0-9-]+)\.(?P<port>[0-9]{1,5}))\)"
)


class Reference(NamedTuple):
    kind: str  #: `index`, `count`, `hosts` or `addresses`
    role: str | None = None
    port: int | None = None  #: of the first task on each node; its neighbours have the next ones


def _of(match: re.Match[str]) -> Reference:
    if match["index"]:
        return Reference("index")
    if match["port"]:
        return Reference("addresses", match["of"], int(match["port"]))
    return Reference(match["kind"], match["role"])


def references(value: str) -> Iterator[Reference]:
    return (_of(match) for match in _REFERENCE.finditer(value) if not match["escape"])


def resolved(value: str, known: Callable[[Reference], str]) -> str:
    def one(match: re.Match[str]) -> str:
        return match[0][1:] if match["escape"] else known(_of(match))

    return _REFERENCE.sub(one, value) if "$(" in value else value


def literal(value: str) -> str:
    """A value that is resolved to exactly these characters."""
    return _REFERENCE.sub(lambda match: "$" + match[0], value) if "$(" in value else value
