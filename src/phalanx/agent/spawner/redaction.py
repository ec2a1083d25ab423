"""Masks the values of secrets in the output of a task.

It finds a value only as it is: not encoded, not split by other output.
"""

import re
from collections.abc import Iterable

MASK = b"[redacted]"
#: Shorter values would mask ordinary text.
_LEAST_BYTES = 4
#: Shorter lines of a value with several lines would, too.
_LEAST_LINE_BYTES = 8


class Redactor:
    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted(_maskable(values), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values)) or b"(?!)")
        self._held = b""

    def mask(self, data: bytes) -> bytes:
        """The output with values masked. The beginning of a value at its end is held back until
        more output arrives."""
        text = self._held + data
        end = max((match.end() for match in self._pattern.finditer(text)), default=0)
        held = self._beginning_at_end(text[end:])
        self._held = text[len(text) - held :] if held else b""
        return self._pattern.sub(MASK, text[: len(text) - held])

    def rest(self) -> bytes:
        """What is held back, at the end of the output."""
        held, self._held = self._held, b""
        return held

    def _beginning_at_end(self, text: bytes) -> int:
        """The most bytes at the end of the text with which a value begins."""
        longest = min(len(text), max(map(len, self._values), default=1) - 1)
        for size in range(longest, 0, -1):
            if any(value.startswith(text[-size:]) for value in self._values):
                return size
        return 0


def _maskable(values: Iterable[str]) -> set[bytes]:
    found: set[bytes] = set()
    for value in values:
        encoded = value.encode()
        lines = encoded.splitlines()
        found.add(encoded)
        found.add(encoded.rstrip(b"\r\n"))
        if len(lines) > 1:
            found |= {line for line in lines if len(line) >= _LEAST_LINE_BYTES}
    return {value for value in found if len(value) >= _LEAST_BYTES}
