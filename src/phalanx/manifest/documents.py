"""The documents of a file or of a request body, as plain data.

The input is a YAML file of any number of documents, or one JSON document. Its size is limited
before it is read; nesting and aliases are limited while it is read. Unquoted words follow the core
schema of YAML 1.2 (`yaml_scalars`).
"""

import json
import re

import yaml
from yaml.reader import ReaderError

from phalanx.core.errors import Invalid, Problem
from phalanx.manifest.yaml_errors import explanation
from phalanx.manifest.yaml_scalars import DIGIT_LIMIT, WrittenNumber
from phalanx.manifest.yaml_tree import DEPTH_LIMIT, DOCUMENT_LIMIT, Mark, YamlTree

LIMIT_BYTES = 1024 * 1024

#: Both are used only to turn text into events, which neither does by recursion.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_NOT_YAML = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Matches strings too, so that the brackets in them are not counted.
_JSON_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def read(data: bytes, *, limit_bytes: int = LIMIT_BYTES) -> list[object]:
    """Every document that is not empty. Raises Invalid if there is none, or one is not valid."""
    if len(data) > limit_bytes:
        raise _refusal(
            f"the input has {len(data)} bytes, and at most {limit_bytes} are accepted; split it"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refusal(f"the input is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    documents = _json(text) or _yaml(text)
    if not documents:
        raise _refusal("the input is empty; write a job")
    return documents


def entries(documents: list[object]) -> list[object]:
    """The documents. A single one that is a list stands for its entries, because JSON has no
    multi-document files. Raises Invalid if there are too many."""
    if len(documents) == 1 and isinstance(documents[0], list) and documents[0]:
        documents = documents[0]
    if len(documents) > DOCUMENT_LIMIT:
        raise _refusal(
            f"the input has {len(documents)} documents, and at most {DOCUMENT_LIMIT} are accepted;"
            " split it"
        )
    return documents


def _refusal(message: str) -> Invalid:
    return Invalid([Problem("", message)])


def _json(text: str) -> list[object] | None:
    """The document of a JSON text; None if the text is not acceptable JSON.

    It is then read as YAML, which includes JSON, because that reports the line of an error.
    """
    if text.lstrip()[:1] not in ("{", "[") or _is_deep(text):
        return None
    try:
        document = _DECODER.decode(text)
        if "\\u" in text:
            # Half of a surrogate pair is valid JSON, but cannot be encoded.
            json.dumps(document, ensure_ascii=False).encode()
    except ValueError:
        return None
    return [document]


def _is_deep(text: str) -> bool:
    """Whether brackets are nested deeper than the limit."""
    if text.count("{") + text.count("[") <= DEPTH_LIMIT:
        return False
    depth = deepest = 0
    for bracket in _JSON_BRACKET.finditer(text):
        if bracket[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket[0] in "]}":
            depth -= 1
    return deepest > DEPTH_LIMIT


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key is given twice")
    return result


def _integer(digits: str) -> int:
    if len(digits) > DIGIT_LIMIT:
        raise ValueError("a number is too long")
    return int(digits)


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_integer,
    parse_float=WrittenNumber,
    parse_constant=_no_constant,
)


def _yaml(text: str) -> list[object]:
    if bad := _NOT_YAML.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        raise _refusal(
            f"line {line}, column {column}: the control character U+{ord(bad[0]):04X} is not"
            " allowed; remove it"
        )
    tree = YamlTree()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            tree.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context_mark is not None and "end of stream" in (error.problem or ""):
            mark = error.context_mark  # the quote that is not closed
        character = _character(text, mark)
        tree.stop(f"{tree.location(mark)}: {explanation(error.context, error.problem, character)}")
    except ReaderError:
        tree.stop(f"{tree.location(None)}: a character is not allowed in YAML; remove it")
    return tree.finished()


def _character(text: str, mark: Mark | None) -> str:
    """The character at a point of the text; empty at its end."""
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return ""
    return lines[mark.line][mark.column : mark.column + 1]
