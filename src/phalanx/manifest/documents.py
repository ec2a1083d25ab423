"""The documents in a file or a request body, as plain data.

Many documents of YAML, or one of JSON. The size is bounded before anything is read, nesting and
aliases while it is read. Words are read by the core schema of YAML 1.2 (see `scalars`).
"""

import json
import re

import yaml
from yaml.reader import ReaderError

from phalanx.core.errors import Invalid, Problem
from phalanx.manifest.yaml_scalars import DIGIT_LIMIT
from phalanx.manifest.yaml_tree import DEPTH_LIMIT, YamlTree

LIMIT_BYTES = 1024 * 1024

#: Both only turn text into events here, which neither does by recursion.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_NOT_YAML = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Strings are matched so that the brackets in them are not counted.
_JSON_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def read(data: bytes, *, limit_bytes: int = LIMIT_BYTES) -> list[object]:
    """Every document that is not empty. `Invalid` if there is none or one cannot be read."""
    if len(data) > limit_bytes:
        raise _refusal(
            f"the input has {len(data)} bytes; at most {limit_bytes} are read: split the file"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refusal(
            f"the input is not UTF-8: byte {error.start} cannot be read; save it as UTF-8"
        ) from None
    documents = _json(text) or _yaml(text)
    if not documents:
        raise _refusal("the input is empty; write a job in it")
    return documents


def _refusal(message: str) -> Invalid:
    return Invalid([Problem("", message)])


def _json(text: str) -> list[object] | None:
    """The one document, or None where the text is no JSON that we take.

    It is then read as YAML, of which JSON is a part, because that says where it is wrong.
    """
    if text.lstrip()[:1] not in ("{", "[") or _depth(text) > DEPTH_LIMIT:
        return None
    try:
        document = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant
        )
        if "\\u" in text:
            # Half of a surrogate pair is valid JSON and cannot be written anywhere.
            json.dumps(document, ensure_ascii=False).encode()
    except ValueError:
        return None
    return [document]


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _JSON_BRACKET.finditer(text):
        if bracket[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket[0] in "]}":
            depth -= 1
    return deepest


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


def _yaml(text: str) -> list[object]:
    if bad := _NOT_YAML.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        raise _refusal(
            f"line {line}, column {column}: a control character (U+{ord(bad[0]):04X}); remove it"
        )
    tree = YamlTree()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            tree.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f" {error.context}" if error.context else ""
        tree.stop(f"{tree.where(mark)}: {error.problem}{context}; correct the YAML there")
    except ReaderError as error:
        tree.stop(f"{tree.where(None)}: {error.reason}; remove the character")
    return tree.close()
