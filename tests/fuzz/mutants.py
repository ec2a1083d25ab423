"""Mutants of manifests in every dialect, always the same for a seed."""

import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)

#: Written into a text at any place.
_TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc0\x80", b"\xc2\x85", b"\t"),
    *(b"\r", b"\xe2\x80\xa8", b"\x1b[2J", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b":"),
    *(b": ", b"#", b"- ", b"? ", b"\n---\n", b"\n...\n", b"%YAML 9.9\n", b"&a ", b"*a"),
    *(b"<<: *a\n", b"!!python/x ", b"!!binary ", b"|\n", b">\n", b"'", b'"', b"${"),
    *(b"$(hosts.worker)", b"$(addresses.a.99999)", b".nan", b"-.inf", b"1e999", b"-0"),
    *(b"0x" + b"f" * 200, b"9" * 500, b"1_000", b"1e-999999999", b"x" * 100_000, b" " * 10_000),
    *(b"[" * 70, b"- " * 70, b"{a: " * 70, b"a" * 300, b"@every 1s"),
)
#: Put in the place of a value.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**38, 1.5, -0.0, float("nan")),
    *(float("inf"), 1e300, "", " ", "a" * 300, "x" * 200_000, "0", "-1", "1e9", "1Ei", "9" * 99),
    *("100000d", "1h" * 50, "* * * * *", "0 0 30 2 *", "*/0 * * * *", "60-0 * * * *", "\ud800"),
    *("\0", "é" * 100, [], {}, [[]], [None], [1] * 1001, {"": ""}, {"a": {"a": {"a": {}}}}),
    ["a/b"] * 200,
)


class Mutant(NamedTuple):
    data: bytes
    path: str
    method: str = "POST"


@cache
def corpus() -> tuple[bytes, ...]:
    """The examples of every dialect, and the form for plain HTTP."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    texts = [block for page in pages for block in _BLOCK.findall(page.read_text())]
    texts += [path.read_text() for path in sorted((ROOT / "examples").glob("*/*.yaml"))]
    short = {"command": "true", "gang_size": 2, "resources": {"gpu": 1}, "depends_on": ["j-1"]}
    return (*(text.encode() for text in texts), json.dumps(short).encode())


def mutants(seed: int, count: int) -> Iterator[Mutant]:
    for number in range(count):
        chance = random.Random(f"{seed}.{number}")  # noqa: S311
        data = chance.choice(corpus())
        for _ in range(chance.choice((1, 1, 2, 4))):
            data = chance.choice(_MUTATIONS)(chance, data)[:900_000]
        yield Mutant(data, *chance.choice(_TARGETS))


_TARGETS = (
    *[("/jobs", "POST")] * 4,
    ("/jobs?ignore_unsupported=true&ignore_image=true", "POST"),
    ("/jobs:batch", "POST"),
    ("/plan", "POST"),
    ("/queues?dry_run=true", "PUT"),
)


# Of the text


def _span(chance: random.Random, data: bytes) -> tuple[int, int]:
    begin = chance.randrange(len(data) + 1)
    return begin, min(len(data), begin + chance.choice((1, 3, 10, 100)))


def _insert(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_TOKENS) + data[at:]


def _replace(chance: random.Random, data: bytes) -> bytes:
    begin, end = _span(chance, data)
    return data[:begin] + chance.choice(_TOKENS) + data[end:]


def _delete(chance: random.Random, data: bytes) -> bytes:
    begin, end = _span(chance, data)
    return data[:begin] + data[end:]


def _flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(changed), chance.choice((1, 4, 16)))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _repeat(chance: random.Random, data: bytes) -> bytes:
    begin, end = _span(chance, data)
    return data[:begin] + data[begin:end] * chance.choice((2, 50, 1000)) + data[end:]


def _repeat_lines(chance: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = chance.randrange(len(lines))
    return b"".join((*lines[:at], lines[at] * chance.choice((2, 100)), *lines[at + 1 :]))


def _shuffle_lines(chance: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _join(chance: random.Random, data: bytes) -> bytes:
    return b"\n---\n".join([data, chance.choice(corpus())] * chance.choice((1, 2, 40)))


def _alias(chance: random.Random, data: bytes) -> bytes:
    levels = chance.choice((3, 9, 60))
    bomb = b"a0: &a0 [x, x]\n" + b"".join(
        b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, levels)
    )
    return bomb + data


# Of the data


def _odd_value(chance: random.Random, data: bytes) -> bytes:
    return _changed(chance, data, lambda value: chance.choice(_VALUES))


def _nested_value(chance: random.Random, data: bytes) -> bytes:
    return _changed(chance, data, lambda value: {"a": [value] * chance.choice((1, 20))})


def _many_entries(chance: random.Random, data: bytes) -> bytes:
    count = chance.choice((50, 1001, 5000))

    def more(value: Any) -> Any:
        if isinstance(value, dict) and value:
            return value | {f"k{n}": next(iter(value.values())) for n in range(count)}
        return [value] * count

    return _changed(chance, data, more)


def _changed(chance: random.Random, data: bytes, change: Callable[[Any], Any]) -> bytes:
    """The documents with one value changed, as YAML or JSON; as they are if they cannot be read."""
    if len(data) > 100_000 or b"*a" in data:
        return data  # reading it takes long, here as anywhere
    try:
        documents = [each for each in yaml.load_all(data, _LOADER) if each is not None]
        places = list(_places(documents))
        if places:
            holder, key = chance.choice(places)
            holder[key] = change(holder[key])
        if chance.random() < 0.5:
            return json.dumps(documents, default=str).encode()
        return yaml.safe_dump_all(documents, sort_keys=False).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError):
        return data


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every entry, as its collection and its key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in list(entries):
        yield value, key
        if isinstance(entry, dict | list):
            yield from _places(entry)


_MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(_insert, _replace, _delete, _flip, _repeat, _repeat_lines, _shuffle_lines, _join, _alias),
    *(_odd_value, _odd_value, _odd_value, _nested_value, _many_entries),
)
