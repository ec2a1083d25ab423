"""Problems of query parameters, described from the annotations of their route.

Litestar checks the parameters; its messages are for programmers, so none of them is passed on.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl

from litestar.exceptions import ValidationException
from litestar.params import HeaderParameter, QueryParameter
from litestar.types import Scope
from litestar.typing import FieldDefinition

from phalanx.core.errors import Problem
from phalanx.core.spec.fields import shown

#: A higher limit only keeps numbers within 63 bits, and is not worth mentioning.
_NO_LIMIT = 2**60
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")


def parameter_problems(error: ValidationException, scope: Scope) -> list[Problem]:
    """What is wrong with which parameters of a request that was refused."""
    fields = scope["route_handler"].parsed_fn_signature.parameters
    given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    if isinstance(error.extra, list):
        refused = [str(item.get("key", "")) for item in error.extra]
        return [_wrong(name, fields[name], given) for name in refused if name in fields]
    return list(_missing(fields, given))


def _wrong(name: str, field: FieldDefinition, given: dict[str, str]) -> Problem:
    definition = field.kwarg_definition
    if isinstance(definition, HeaderParameter):
        return Problem(definition.name or name, f"is not {_form(field)}")
    value = given.get(name, "")
    quoted = value if _NUMBER.fullmatch(value) else shown(value)
    return Problem(name, f"is {quoted}; write {_form(field)}")


def _missing(fields: dict[str, FieldDefinition], given: dict[str, str]) -> Iterator[Problem]:
    for name, field in fields.items():
        is_query = isinstance(field.kwarg_definition, QueryParameter)
        if is_query and field.is_required and name not in given:
            example = "1" if field.annotation in (int, float) else "…"
            yield Problem(name, f"is missing; add {name}={example} to the query")


def _form(field: FieldDefinition) -> str:
    """What the parameter accepts: `a whole number from 1 to 1000`."""
    kinds = [kind for kind in (field.args or (field.annotation,)) if kind is not type(None)]
    kind = kinds[0] if kinds else str
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return _number("a whole number" if kind is int else "a number", field.kwarg_definition)
    if isinstance(kind, type) and issubclass(kind, Enum):
        *words, last = (str(each.value) for each in kind)
        return f"{', '.join(words)} or {last}"
    return "text"


def _number(form: str, definition: Any) -> str:
    low, high = getattr(definition, "ge", None), getattr(definition, "le", None)
    if low is None:
        return form
    return f"{form} from {low} to {high}" if high and high < _NO_LIMIT else f"{form}, {low} or more"
