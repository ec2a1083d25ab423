"""JSON bodies decoded into structs, with problems described by path."""

import re
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from phalanx.api.errors import wrong
from phalanx.core.errors import Invalid
from phalanx.core.spec.fields import shown

T = TypeVar("T")

_MISSING = re.compile(r"missing required field `(\w+)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `(\w+)`)?")
_ENUM = re.compile(r"Invalid enum value ['\"]?(.*?)['\"]?$")
_BYTE = re.compile(r"\(byte (\d+)\)")

_FORMS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


class JsonBody(Generic[T]):
    """Decodes bodies into one type. `words` are the values of the enumerations in it, by field."""

    def __init__(self, kind: type[T], words: dict[str, type[StrEnum]] | None = None) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._words = words or {}

    def decode(self, data: bytes) -> T:
        """Raises Invalid with the path of the field and the cure."""
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            place = _BYTE.search(str(error))
            where = f" at byte {place[1]}" if place else ""
            raise wrong("", f"the body is not valid JSON{where}; send a JSON object") from None

    def _invalid(self, error: str) -> Invalid:
        """From the decoder's `… - at `$.tasks[0].state``, which is not passed on."""
        message, _, path = error.partition(" - at `$")
        path = path.rstrip("`").lstrip(".")
        if missing := _MISSING.search(message):
            field = f"{path}.{missing[1]}".lstrip(".")
            return wrong(field, "is missing; it has no default")
        field = path.rpartition(".")[2]
        if (value := _ENUM.search(message)) and field in self._words:
            return wrong(path, f"is {shown(value[1])}; write {' or '.join(self._words[field])}")
        expected = _EXPECTED.search(message)
        form = _form(expected[1]) if expected else "a valid value"
        got = f"is {_form(expected[2])}" if expected and expected[2] else "is not valid"
        return wrong(path, f"{got}; write {form}" if path else f"the body {got}; send {form}")


def _form(kind: str) -> str:
    """`int | null` in words."""
    return " or ".join(_FORMS.get(each, each) for each in kind.split(" | "))
