"""The values of unquoted words in YAML, by the core schema of YAML 1.2.

Only `true` and `false` are booleans. `yes`, `no`, `on` and `off` are strings, and so are dates,
`1:30` and numbers with leading zeros, which are often file modes or ids.
"""

import re

_WORDS = (
    dict.fromkeys(("", "~", "null", "Null", "NULL"), None)
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BASED = {"0o": (re.compile(r"0o[0-7]+"), 8), "0x": (re.compile(r"0x[0-9a-fA-F]+"), 16)}
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class WrittenNumber(float):
    """A number that is printed as it was written: `1e-3` and not `0.001`."""

    def __new__(cls, word: str) -> "WrittenNumber":
        number = super().__new__(cls, word)
        number.word = word
        return number

    word: str

    def __str__(self) -> str:
        return self.word


#: Longer than any number in a manifest; Python is slow at numbers of very many digits.
DIGIT_LIMIT = 100


def resolved(word: str) -> str | int | float | bool | None:
    """The value of an unquoted word. A number that is too long stays a string."""
    if word in _WORDS:
        return _WORDS[word]
    if len(word) > DIGIT_LIMIT:
        return word
    if _INTEGER.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word):
        return WrittenNumber(word)
    if _NOT_FINITE.fullmatch(word):
        return float(word.replace(".", "", 1))
    pattern, base = _BASED.get(word[:2], (None, 0))
    return int(word, base) if pattern and pattern.fullmatch(word) else word
